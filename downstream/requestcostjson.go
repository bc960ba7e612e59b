package downstream

import (
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"slices"

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

const (
	firstChunk = 4 << 10 // of a request; few are longer
	laterChunk = 16 << 10
)

// jsonRequest is a request as it arrives. It is in parts, because most of a long one would be copied again and again.
type jsonRequest struct {
	parts [][]byte
	conn  *arriving
	size  int64 // what conn counts
}

// read reads the request, as long as it is within the limits.
func (r *jsonRequest) read(from io.Reader, l Limits) (over *excess, err error) {
	var peek jsonPeeker
	r.grow(firstChunk)
	for {
		part := &r.parts[len(r.parts)-1]
		had := len(*part)
		n, err := from.Read((*part)[had:cap(*part)])
		*part = (*part)[:had+n]
		peek.write((*part)[had:])
		if e := peek.over(l); e != nil {
			return e, nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return nil, err
		case len(*part) == cap(*part):
			r.grow(laterChunk)
		}
	}
}

func (r *jsonRequest) grow(bytes int) {
	r.parts = append(r.parts, make([]byte, 0, bytes))
	r.size += int64(bytes)
	r.conn.add(int64(bytes))
}

// bytes returns the request that was read.
func (r *jsonRequest) bytes() []byte {
	if len(r.parts) == 1 {
		return r.parts[0]
	}
	return slices.Concat(r.parts...)
}

// free ends the counting of what the request takes.
func (r *jsonRequest) free() { r.conn.add(-r.size) }

// decodePlaces bounds how many requests are decoded at once, which takes several times their length in memory, of JSON
// many times, and a whole processor.
func decodePlaces() *Places {
	return NewPlaces(max(1, min(runtime.GOMAXPROCS(0), runtime.NumCPU())/2), 0, 0)
}
