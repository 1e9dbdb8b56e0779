package diagnose

import "testing"

func TestDefaultText(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"((0))": "0", "('x')": "'x'", "(N'(x)')": "'(x)'", "(getdate())": "getdate()", "(NULL)": "NULL", "": ""} {
		if got := defaultText(given); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}
