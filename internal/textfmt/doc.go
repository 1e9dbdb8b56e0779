// Package textfmt formats small values for people: durations, counts, untrusted
// text and the causes of errors. It uses only the standard library.
package textfmt
