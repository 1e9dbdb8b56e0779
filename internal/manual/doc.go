// Package manual writes the manual pages and the reference page of the commands, from the texts of their help.
//
// It depends on cobra only. Start reading at Pages and Markdown. cobra's own package for this doesn't fit: it fills tables
// like prose, omits the names of the options' values, and adds a Markdown parser to the program.
package manual
