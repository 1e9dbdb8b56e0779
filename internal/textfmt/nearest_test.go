package textfmt

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"api", "mail", "stock-check"}
	for name, want := range map[string]string{
		"mial": "mail", "mails": "mail", "mall": "mail", "stock-chekc": "stock-check", "stok-chck": "stock-check", "stock": "stock-check",
		"liam": "", "orders": "", "": "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%q is probably %q, want %q", name, got, want)
		}
	}
}
