package downstream

import (
	"errors"
	"sync"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The names in requests. Thousands of clients ask for the same ones, often all at
// once, so that a name is looked up among those that were asked for before, and not
// made anew.

// knownNames are names that clients have asked for. The zero value is ready.
type knownNames struct {
	mu    sync.RWMutex
	names map[string]string
}

// What is remembered: so many names, and none longer, in bytes. When there are more,
// it begins anew.
const (
	maxKnownNames    = 1 << 16
	maxKnownNameSize = 256
)

// texts returns the names as strings, in their order.
func (k *knownNames) texts(names [][]byte) []string {
	texts := make([]string, len(names))
	missing := 0
	k.mu.RLock()
	for i, name := range names {
		if texts[i] = k.names[string(name)]; texts[i] == "" {
			missing++
		}
	}
	k.mu.RUnlock()
	if missing > 0 {
		k.learn(names, texts)
	}
	return texts
}

// learn fills in those of the texts that are not there yet.
func (k *knownNames) learn(names [][]byte, texts []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, name := range names {
		if texts[i] != "" || len(name) == 0 {
			continue
		}
		text, known := k.names[string(name)]
		if !known {
			text = string(name)
		}
		texts[i] = text
		if known || len(name) > maxKnownNameSize {
			continue
		}
		if k.names == nil || len(k.names) == maxKnownNames {
			k.names = map[string]string{}
		}
		k.names[text] = text
	}
}

var errNotUTF8 = errors.New("a resource name is not valid UTF-8")

// decode is proto.Unmarshal of an encoded request. It keeps nothing of the bytes.
func (f *requestFields) decode(request []byte, into proto.Message, known *knownNames) error {
	const few = 128
	var lists [2][][]byte // of names to subscribe to, and to unsubscribe from
	var room [few][]byte
	lists[0] = room[:0]
	rest := make([]byte, 0, few)
	for len(request) > 0 {
		num, value, n := nextBytes(request)
		switch {
		case n == 0: // of another kind, or not to be read
			if _, _, n = protowire.ConsumeField(request); n < 0 {
				return protowire.ParseError(n)
			}
			rest = append(rest, request[:n]...)
		case num == f.subscribe, num == f.unsubscribe:
			if !utf8.Valid(value) {
				return errNotUTF8
			}
			list := &lists[0]
			if num == f.unsubscribe {
				list = &lists[1]
			}
			*list = append(*list, value)
		default:
			rest = append(rest, request[:n]...)
		}
		request = request[n:]
	}
	if err := proto.Unmarshal(rest, into); err != nil {
		return err
	}
	switch req := into.(type) {
	case *discoveryv3.DiscoveryRequest:
		req.ResourceNames = known.texts(lists[0])
	case *discoveryv3.DeltaDiscoveryRequest:
		req.ResourceNamesSubscribe, req.ResourceNamesUnsubscribe = known.texts(lists[0]), known.texts(lists[1])
	}
	return nil
}
