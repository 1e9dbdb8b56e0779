package worker

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// PayloadText returns a payload in the form for a shell or a command: a JSON string as its
// text, and any other payload as it is. Clients store texts as JSON strings. It is what
// `jq -r` prints, without the newline.
func PayloadText(payload []byte) []byte {
	value := bytes.Trim(payload, " \t\r\n")
	if !bytes.HasPrefix(value, []byte(`"`)) {
		return payload
	}
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil { // not JSON, or half of a surrogate pair, which no text has
		return payload
	}
	if text == nil {
		text = []byte{}
	}
	return text
}
