package manual

import "testing"

// TestRoffIsText checks that no line of a text becomes a request.
func TestRoffIsText(t *testing.T) {
	var p page
	p.text(".SH no\n'br no\n\\fBno\n\n  .nf\n  a-b\n")
	const want = `\&.SH no
\(aqbr no
\efBno
.PP
.nf
  .nf
  a\-b
.fi
`
	if got := p.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
