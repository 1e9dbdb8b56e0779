package transcript

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// bytesFields are the fields that contain bytes: msgpack bin, or in JSON a string or the field
// X_b64.
var bytesFields = map[string]bool{"payload": true, "result": true, "data": true}

// textMaps are the fields whose keys are not field names.
var textMaps = map[string]bool{"headers": true}

// ToMsgpack converts a message from JSON into one msgpack map. It does not check ops and ranges, so
// an invalid message stays invalid in the same way. It does not use protocol's codecs, so that it
// can't repeat their mistakes.
func ToMsgpack(m map[string]any) ([]byte, error) {
	var b bytes.Buffer
	if err := putMap(msgpack.NewEncoder(&b), m, false); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func putMap(e *msgpack.Encoder, m map[string]any, isText bool) error {
	if err := e.EncodeMapLen(len(m)); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v := m[k]
		plain, b64 := strings.CutSuffix(k, "_b64")
		text, isString := v.(string)
		var err error
		switch {
		case isText || !isString || !bytesFields[plain]:
			err = put(e, k, v)
		case b64:
			var raw []byte
			if raw, err = base64.StdEncoding.DecodeString(text); err == nil {
				err = putBytes(e, plain, raw)
			}
		default:
			err = putBytes(e, k, []byte(text))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
	}
	return nil
}

func putBytes(e *msgpack.Encoder, k string, b []byte) error {
	if err := e.EncodeString(k); err != nil {
		return err
	}
	return e.EncodeBytes(b)
}

func put(e *msgpack.Encoder, k string, v any) error {
	if err := e.EncodeString(k); err != nil {
		return err
	}
	return putValue(e, v, textMaps[k])
}

func putValue(e *msgpack.Encoder, v any, isText bool) error {
	switch v := v.(type) {
	case map[string]any:
		return putMap(e, v, isText)
	case []any:
		if err := e.EncodeArrayLen(len(v)); err != nil {
			return err
		}
		for _, el := range v {
			if err := putValue(e, el, isText); err != nil {
				return err
			}
		}
		return nil
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return e.EncodeInt(n)
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return e.EncodeUint(n)
		}
		f, err := v.Float64()
		if err != nil {
			return err
		}
		return e.EncodeFloat64(f)
	case string:
		return e.EncodeString(v)
	case bool:
		return e.EncodeBool(v)
	case nil:
		return e.EncodeNil()
	default:
		return fmt.Errorf("a %T cannot stand in a message", v)
	}
}

// FromMsgpack converts a msgpack map into a message as JSON has it. It trusts lengths and recurses,
// so use it only for messages of the server under test.
func FromMsgpack(b []byte) (map[string]any, error) {
	r := bytes.NewReader(b)
	v, err := getValue(msgpack.NewDecoder(r))
	if err != nil {
		return nil, fmt.Errorf("not msgpack: %w", err)
	}
	m, ok := v.(map[string]any)
	if !ok || r.Len() > 0 {
		return nil, fmt.Errorf("not one msgpack map: %v with %d bytes behind it", v, r.Len())
	}
	return m, nil
}

func getValue(d *msgpack.Decoder) (any, error) {
	c, err := d.PeekCode()
	if err != nil {
		return nil, err
	}
	switch {
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		return getMap(d)
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		n, err := d.DecodeArrayLen()
		if err != nil {
			return nil, err
		}
		list := make([]any, n)
		for i := range list {
			if list[i], err = getValue(d); err != nil {
				return nil, err
			}
		}
		return list, nil
	case msgpcode.IsString(c):
		return d.DecodeString()
	case msgpcode.IsBin(c):
		return d.DecodeBytes()
	case c == msgpcode.True, c == msgpcode.False:
		return d.DecodeBool()
	case c == msgpcode.Nil:
		return nil, d.DecodeNil()
	case c == msgpcode.Float, c == msgpcode.Double:
		f, err := d.DecodeFloat64()
		return json.Number(strconv.FormatFloat(f, 'g', -1, 64)), err
	case c == msgpcode.Uint64:
		n, err := d.DecodeUint64()
		return json.Number(strconv.FormatUint(n, 10)), err
	default:
		n, err := d.DecodeInt64()
		return json.Number(strconv.FormatInt(n, 10)), err
	}
}

// getMap reads a map. It converts bytes as JSON does: to a string if they are text, otherwise to
// the field X_b64.
func getMap(d *msgpack.Decoder) (any, error) {
	n, err := d.DecodeMapLen()
	if err != nil {
		return nil, err
	}
	m := make(map[string]any, n)
	for range n {
		k, err := d.DecodeString()
		if err != nil {
			return nil, err
		}
		v, err := getValue(d)
		if err != nil {
			return nil, err
		}
		if b, isBytes := v.([]byte); isBytes && !utf8.Valid(b) {
			k, v = k+"_b64", base64.StdEncoding.EncodeToString(b)
		} else if isBytes {
			v = string(b)
		}
		if _, dup := m[k]; dup {
			return nil, fmt.Errorf("the key %q is in a map twice", k)
		}
		m[k] = v
	}
	return m, nil
}
