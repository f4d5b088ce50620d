# Run once, by the image, on an empty data folder: the role that Octavo connects as. It owns its database and is no
# superuser, so that row-level security holds for it. The password goes in by standard input and stands in no list of
# processes.
set -eu

psql --set ON_ERROR_STOP=1 --quiet --username "${POSTGRES_USER:-postgres}" --dbname postgres <<SQL
\set password \`cat "${OCTAVO_PASSWORD_FILE:-/run/secrets/database_password}"\`
CREATE ROLE octavo LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD :'password';
CREATE DATABASE octavo OWNER octavo ENCODING 'UTF8';
REVOKE ALL ON DATABASE octavo FROM PUBLIC;
SQL
