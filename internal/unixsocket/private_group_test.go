package unixsocket

import "testing"

func TestPrivateGroup(t *testing.T) {
	const users = "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\nbob:x:1001:100::/home/bob:/bin/sh\n"
	for groups, want := range map[string]bool{
		"root:x:0:\nada:x:1000:\n":               true,
		"ada:x:1000:ada":                         true,
		"ada:x:1000:bob\n":                       false,
		"ada:x:1000:ada,bob\n":                   false,
		"staff:x:1000:\n":                        false, // called otherwise: made to be shared
		"ada:x:1000:\nalso:x:1000:bob\n":         false,
		"ada:x:1001:\n":                          false,
		"":                                       false,
		"ada:x:1000\n":                           false,
		"ada:x:1000:\n+::::\nbroken line\n:::\n": true,
	} {
		if got := isPrivate(groups, users, "ada", "1000"); got != want {
			t.Errorf("%q: %v, want %v", groups, got, want)
		}
	}
	if isPrivate("ada:x:1000:\n", users+"eve:x:1002:1000::/:/bin/sh\n", "ada", "1000") {
		t.Error("a group that is another user's own too is taken for private")
	}
}
