package downstream

import (
	"encoding/json"
	"errors"
	"io"
	"runtime"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// The cost of a request in JSON, counted while it is being read: if it exceeds a limit, the rest is not read. For
// bytes that are not valid JSON, any count will do: the decoder rejects them.

// jsonPeeker counts what is in the bytes of a request that are written to it. The zero value is ready.
type jsonPeeker struct {
	wire.RequestCost
	objects int // in the locators: each is one, or two with its parameters
	details int // values in an error's details

	depth             int
	inString, escaped bool
	key               []byte // of the newest value of the request itself, quoted
	about             string // the same, while the value is being read
}

func (j *jsonPeeker) write(b []byte) {
	for _, c := range b {
		if j.about == "node" {
			j.Node++
		}
		if j.inString {
			j.text(c)
			continue
		}
		switch c {
		case '"':
			j.inString = true
			if j.depth == 1 && j.about == "" {
				j.key = append(j.key[:0], c)
			}
		case '{', '[':
			j.depth++
			j.value(c)
		case '}', ']':
			if j.depth--; j.depth == 0 {
				j.about = ""
			}
		case ':':
			if j.depth == 1 {
				j.about = jsonText(j.key)
			}
			j.value(c)
		case ',':
			if j.depth == 1 {
				j.about = ""
			}
			j.value(c)
		default:
		}
	}
	j.Locators = j.objects / 2
}

func (j *jsonPeeker) over(l Limits) *excess {
	if e := l.overCost(j.RequestCost); e != nil {
		return e
	}
	return over(limitNodeValues, j.details, maxNodeValues, "an error_detail of %d values")
}

// text processes a byte of a string.
func (j *jsonPeeker) text(c byte) {
	if j.depth == 1 && j.about == "" && len(j.key) <= maxJSONKey {
		j.key = append(j.key, c)
	}
	switch {
	case j.escaped:
		j.escaped = false
	case c == '\\':
		j.escaped = true
	case c == '"':
		j.inString = false
	}
}

// value counts the value that begins with c, or after it: too many rather than too few. A value that is nested too
// deeply counts as too much.
func (j *jsonPeeker) value(c byte) {
	n := 1
	if j.depth > wire.MaxNesting+1 { // the request's own object is one
		n = maxNodeValues + 1
	}
	switch j.about {
	case "node":
		j.NodeValues += n
	case "errorDetail", "error_detail":
		j.details += n
	case "resourceLocators", "resource_locators":
		if c == '{' {
			j.objects++
		}
	default:
	}
}

// maxJSONKey is longer than any key of a request, in whichever spelling.
const maxJSONKey = 128

// jsonText returns the content of a JSON string. It is never empty, because a value always has a key.
func jsonText(quoted []byte) string {
	var text string
	if len(quoted) > maxJSONKey || json.Unmarshal(quoted, &text) != nil || text == "" {
		return "something else"
	}
	return text
}

// readJSON reads a request as JSON, as long as it is within the limits.
func readJSON(from io.Reader, l Limits) (body []byte, over *excess, err error) {
	var peek jsonPeeker
	chunk := make([]byte, 16<<10)
	for {
		n, err := from.Read(chunk)
		peek.write(chunk[:n])
		if e := peek.over(l); e != nil {
			return nil, e, nil
		}
		body = append(body, chunk[:n]...)
		switch {
		case errors.Is(err, io.EOF):
			return body, nil, nil
		case err != nil:
			return nil, nil, err
		}
	}
}

// decodeSlots bounds how many requests are decoded from JSON at once, which takes many times their length in memory,
// and a whole processor.
func decodeSlots() chan struct{} {
	return make(chan struct{}, max(1, min(runtime.GOMAXPROCS(0), runtime.NumCPU())/2))
}
