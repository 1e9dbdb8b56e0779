package textfmt

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Plural returns n and the noun, with an s unless n is 1.
func Plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// OneLine returns text on one line, without control characters and with at most n
// characters. It quotes text that contains any other character, and returns "-" for
// empty text.
func OneLine(text string, n int) string {
	if text == "" {
		return "-"
	}
	plain := utf8.ValidString(text)
	for _, r := range text {
		plain = plain && strconv.IsPrint(r)
	}
	if !plain {
		text = strconv.Quote(text)
	}
	if runes := []rune(text); len(runes) > n {
		text = string(runes[:n-1]) + "…"
	}
	return text
}

// RootCause returns the innermost error that err wraps.
func RootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// Cut returns the beginning of a text: at most most bytes of whole characters, and "…" if something is missing.
func Cut(text string, most int) string {
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// URLOf returns the URL of an address of the admin listener: HOST:PORT, or the path of a socket, which stays as it is.
func URLOf(address string) string {
	if strings.HasPrefix(address, "/") {
		return address
	}
	return "http://" + address + "/"
}
