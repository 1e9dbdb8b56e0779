'use strict'

/**
 * Imports a module and returns its default export. TypeScript and others compile `export default` for CommonJS to
 * `exports.default`, and mark that with `__esModule`.
 */
async function load(module) {
  const { default: found } = await import(module)
  return found?.__esModule ? found.default : found
}

module.exports = { load }
