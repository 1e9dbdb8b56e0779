package config

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/internal/engines"
)

var (
	// secretValue matches the value after the name of a secret, in keys and in parameters of
	// URLs. It doesn't match password_file.
	secretValue = regexp.MustCompile(`(?i)((?:pas[a-z]*|pwd|secret)["']?\s*[:=]\s*)\S.*`)
	// urlKey matches what comes before the values of url and replica_url.
	urlKey    = regexp.MustCompile(`(?i)\b(?:replica_)?url["']?\s*:\s*["']?`)
	urlBegins = regexp.MustCompile(`^([A-Za-z0-9+.-]+://|sqlite:|\$\{)`)
	// urlInText ends at a character that no URL contains.
	urlInText = regexp.MustCompile("[A-Za-z0-9+.-]+://[^\\s\"'`,}]*")
)

// maskedLine returns a line of a config without possible passwords.
func maskedLine(line string) string {
	for _, key := range urlKey.FindAllStringIndex(line, -1) {
		if value := line[key[1]:]; strings.TrimSpace(value) != "" && !urlBegins.MatchString(value) {
			line = line[:key[1]] + "…" // not a URL, so it can be a misplaced password
			break
		}
	}
	return masked(line)
}

// masked returns a line, or an error about one, without possible passwords. It cuts the text
// after a possible password, because its end is unknown.
func masked(line string) string {
	const form, mark = "://USER@HOST", "\x00" // form is in this program's own messages
	return strings.ReplaceAll(maskedURLs(strings.ReplaceAll(line, form, mark)), mark, form)
}

func maskedURLs(line string) string {
	line = secretValue.ReplaceAllString(line, "$1…")
	at := 0
	for {
		span := urlInText.FindStringIndex(line[at:])
		if span == nil {
			return line
		}
		from, to := at+span[0], at+span[1]
		if u := line[from:to]; !strings.HasPrefix(u, "sqlite:") && (engines.HasPassword(u) || engines.CheckAddress(u) != nil || strings.Contains(line[to:], "@")) {
			scheme, _, _ := strings.Cut(u, "://")
			return line[:from] + scheme + "://…"
		}
		at = to
	}
}

// unexpand replaces the values of environment variables, which can be secrets, by ${NAME}.
func unexpand(text string, values map[string]string) string {
	names := make([]string, 0, len(values))
	for name, value := range values {
		if len(value) >= 4 { // a shorter value would match anywhere
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(values[b]), len(values[a])), cmp.Compare(a, b))
	})
	for _, name := range names {
		text = strings.ReplaceAll(text, values[name], "${"+name+"}")
	}
	return text
}
