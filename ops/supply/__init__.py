"""What Octavo is made of beside its own code: a list of all of it, under which licences, and what is known against it.

`python -m ops.supply` (`make supply`) writes all of that into a folder; `… licences` is the part of `make check`.
"""
