// Prints the page of the Node client's API, from the declarations and comments in its index.d.ts.

const fs = require('node:fs')

// The order of the page: what a program uses first comes first. Errors follow in the order of the file.
const FIRST = ['Client', 'ClientOptions', 'CallOptions', 'JobOptions', 'NewJob', 'Enqueued', 'ClaimOptions', 'NackOptions', 'PeekOptions', 'JobInfo',
  'QueueStats', 'Job', 'Worker', 'Handlers', 'Handler', 'WorkerOptions', 'RunOptions', 'Logger', 'Retry', 'Snooze', 'Dead', 'testing', 'Payload']

const source = fs.readFileSync('clients/node/index.d.ts', 'utf8')

/** Returns the text of a comment without its marks. */
function comment(text) {
  return text.trim().replace(/^\/\*\*|\*\/$/g, '').split('\n').map((line) => line.replace(/^\s*\* ?/, '').trim()).join('\n').trim()
}

/** Returns the declarations at an indentation: the comment, the code and the name of each. */
function declarations(text, indent) {
  const found = []
  let doc = ''
  const lines = text.split('\n')
  for (let i = 0; i < lines.length; i++) {
    if (!lines[i].startsWith(indent) || /^[ /*}]?$|^[ }]|^\/\/\//.test(lines[i].slice(indent.length))) continue
    const first = i
    const isComment = lines[i].startsWith(`${indent}/**`)
    const ends = isComment ? (line) => line.endsWith('*/') : (line) => !lines[first].endsWith('{') || line.startsWith(`${indent}}`)
    while (!ends(lines[i])) i++
    const code = lines.slice(first, i + 1).join('\n')
    if (isComment) {
      doc = comment(code)
      continue
    }
    const name = /(?:class|interface|type|namespace|function|readonly|get|private) (\w+)/.exec(code.split('\n')[0]) ?? /(\w+)/.exec(code)
    found.push({ doc, code, name: name[1] })
    doc = ''
  }
  return found
}

const withoutComments = (code) => code.replace(/^ *\/\*\*(?:(?!\*\/)[^])*\*\/\n/gm, '').replace(/^ *private .*\n/gm, '').replace(/^\s*\n/gm, '')

function members(code, indent) {
  let out = ''
  for (const member of declarations(code, indent)) {
    if (member.doc) out += `- \`${member.name}\`: ${member.doc.replaceAll('\n', '\n  ')}\n`
    if (member.code.includes('{\n')) out += members(member.code, `${indent}  `).replace(/^(?=.)/gm, '  ')
  }
  return out
}

const all = declarations(source, '').filter(({ code }) => code.startsWith('export '))
const rank = ({ name }) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length)
const missing = FIRST.filter((name) => !all.some((each) => each.name === name))
if (missing.length > 0) throw new Error(`index.d.ts has no ${missing}`)

let page = '# Node.js API\n\nThese are the types of the package. The [README](../../clients/node/README.md) has examples.\n'
let errors = false
for (const { doc, code, name } of all.sort((a, b) => rank(a) - rank(b))) {
  if (!errors && rank({ name }) === FIRST.length) {
    errors = true
    page += '\n## Errors\n'
  }
  const declared = withoutComments(code).replace(/^export /, '')
  page += `\n${errors ? '###' : '##'} ${name}\n\n`
  if (!/^class \w+ extends \w+ \{\}$/.test(declared)) page += '```ts\n' + declared + '\n```\n\n'
  else page += `\`${declared.replace(' {}', '')}\`\n\n`
  page += `${doc}\n`
  const more = members(code, '  ')
  if (more) page += `\n${more}`
}
process.stdout.write(page)
