/* Random markdown, streamed in random pieces beside its rendering at once. Given [seed, how many]; gives what went wrong. */
async ([seed, n]) => {
  const { MarkdownView } = await import('#octavo/markdown.js');
  let state = seed; const random = (k) => (state = (state * 48271) % 2147483647) % k; const pick = (a) => a[random(a.length)];
  const WORDS = ["word","**bold**","*em*","`code`","~~gone~~","[link](https://example.org/a)","![pic](https://x.org/p.png)","$a^2$","\\(b_n\\)","$5","snake_case","a*b","&amp;","&","<b>","https://example.org","[ref]","[^1]","***both***","_x_","\\*","👩‍👩‍👧","삼겹살","مرحبا","**half","`half","$half^2","[half","(paren)","|","“q”","--","$$d$$","\u202e","a\\\nb","  \nbreak","**bold `x** y`","[a **b** c](https://e.org)","![x [y] z](https://a.b)", "~~~", "``a ` b``","\\[x^2\\]","1.","#","-"];
  const line = () => Array.from({length:1+random(8)},()=>pick(WORDS)).join(" ");
  const block = (d=0) => { switch(random(d>1?7:16)) {
    case 0: case 1: case 2: return line();
    case 3: return line()+"\n"+line();
    case 4: return "#".repeat(1+random(6))+" "+line();
    case 5: return "---";
    case 6: return "```"+pick(["","js","python","unknown","js title=a.js"," "])+"\n"+Array.from({length:random(6)},()=>pick(["let a = 1;","","  x","``","def f():","*a*","$x$"])).join("\n")+"\n"+pick(["```","```","```","````","``"]);
    case 7: return Array.from({length:1+random(4)},()=>pick(["- ","* ","+ ","- [ ] ","- [x] "])+line()).join(pick(["\n","\n\n"]));
    case 8: return Array.from({length:1+random(4)},(_,i)=>`${i+1}. `+line()).join(pick(["\n","\n\n"]));
    case 9: return block(d+1).split("\n").map((l)=>"> "+l).join("\n");
    case 10: return "- "+block(d+1).split("\n").join("\n  ")+"\n  - "+block(d+1).split("\n").join("\n    ");
    case 11: return "| a | "+line()+" |\n|---|:-:|\n"+Array.from({length:random(4)},()=>"| "+line()+" | "+line()+" |").join("\n");
    case 12: return pick(["$$\na+b\n$$","\\[\nx^2\n\\]","$$\nopen","\\begin{align}\na &= b\n\\end{align}","$$ c $$", "$$\na\n\nb\n$$"]);
    case 13: return pick(["[ref]: https://example.com/x","[^1]: a note "+line(),"> [!NOTE]\n> "+line(),"Head\n====","Head\n----","    indented\n\n    more"]);
    case 14: return "```js\n"+line()+"\n\n"+line();
    default: return Array.from({length:5+random(100)},()=>pick([..."*_`~[]()<>#-|$\\\n\n !1.ab&;:^{}"])).join("");
  } };
  const place = document.body.appendChild(document.createElement("section"));
  const bad = []; const pairs = [];
  for (let i=0;i<n;i+=1) {
    const first = state;
    const text = Array.from({length:1+random(9)},()=>block()).join(pick(["\n\n","\n\n","\n"])).replaceAll("\n", random(12)===0?"\r\n":"\n");
    const a = place.appendChild(document.createElement("div")), b = place.appendChild(document.createElement("div"));
    try {
      const view = new MarkdownView(a);
      const most = pick([2,9,40]);
      let seen = [], keptBad = false;
      for (let at=0; at<text.length;) {
        at += 1+random(most);
        const closedBefore = view.cutter.closed.length, els=[...a.children].slice(0, closedBefore);
        view.update(text.slice(0,at), true);
        if (els.some((el,k)=>a.children[k]!==el)) keptBad = true;
      }
      view.update(text);
      new MarkdownView(b).update(text);
      if (keptBad) bad.push({seed:first, why:"identity", text});
      pairs.push([a,b,text,first]);
    } catch (e) { bad.push({seed:first, why:String(e)+e.stack, text}); }
  }
  for (let t=0;t<40;t+=1) { await new Promise(r=>setTimeout(r,50)); if (pairs.every(([a,b])=>a.innerHTML===b.innerHTML)) break; }
  for (const [a,b,text,first] of pairs) if (a.innerHTML!==b.innerHTML) { const x=a.innerHTML,y=b.innerHTML; let k=0; while(x[k]===y[k]) k+=1; bad.push({seed:first, why:"differs", text, streamed:x.slice(Math.max(0,k-80),k+120), fresh:y.slice(Math.max(0,k-80),k+120)}); }
  place.remove();
  return bad;
}
