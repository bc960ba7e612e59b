package envoyjson

import (
	"bytes"
	"testing"
)

// FuzzYAML reads any text as YAML. What it reads prints as JSON, which reads the same again, and aliases make it
// no larger than they may.
func FuzzYAML(f *testing.F) {
	for _, text := range []string{
		"name: c\ntype: EDS\nconnect_timeout: 1.5s\n---\n- 0x10\n- 010\n- +1\n- 9999999999\n- yes\n- ~\n- 'no'\n- !!str 1\n",
		"a: &a {x: 1, y: [1, 2]}\nb: {<<: *a, x: 2}\nc: {<<: [*a, {z: 3}]}\n",
		"&a [*a]", "x: !ignore &b 1\n? [a]\n: b\n", `{"a": "\u00e9\/", "b": 1e3, "c": [true, null]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		documents, _ := YAML(text)
		for _, v := range documents {
			var p printer
			p.value(v)
			if len(p.lines) > 6*(10*len(text)+1000) {
				t.Fatalf("%d bytes have %d tokens", len(text), len(p.lines))
			}
			again, wrong := JSON(p.json)
			if wrong != nil {
				t.Fatalf("%s prints as %s: %v", text, p.json, wrong)
			}
			var second printer
			if second.value(again); !bytes.Equal(second.json, p.json) {
				t.Fatalf("%s prints as %s, which reads as %s", text, p.json, second.json)
			}
		}
	})
}
