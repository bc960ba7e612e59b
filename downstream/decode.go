package downstream

import (
	"errors"
	"sync"
	"sync/atomic"
	"unicode/utf8"
	"weak"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// The names in requests. Thousands of clients request the same names, often all at once. So the relay looks up a name
// among those requested before, and does not allocate it again.

// knownNames are names that clients have requested. The zero value is ready. The names exist while a request that has
// them is being read, and then until the next garbage collection. So names that one client has made up do not stay once
// nobody requests them.
type knownNames struct {
	table atomic.Pointer[weak.Pointer[nameTexts]]
}

// nameTexts are single names.
type nameTexts struct {
	mu    sync.RWMutex
	names map[string]string
}

// texts returns the known names, for as long as a request is being read.
func (k *knownNames) texts() *nameTexts {
	for {
		was := k.table.Load()
		if was != nil {
			if texts := was.Value(); texts != nil {
				return texts
			}
		}
		texts := &nameTexts{names: map[string]string{}}
		is := weak.Make(texts)
		if k.table.CompareAndSwap(was, &is) {
			return texts
		}
	}
}

// Bounds on what is remembered: the number of names, and the length of one in bytes. When they are exceeded, the memory
// is cleared.
const (
	maxKnownNames    = 1 << 16
	maxKnownNameSize = 256
)

// text returns a name as a string.
func (k *nameTexts) text(name []byte) string {
	k.mu.RLock()
	text, known := k.names[string(name)]
	k.mu.RUnlock()
	switch {
	case known:
		return text
	case len(name) > maxKnownNameSize:
		return string(name)
	}
	return k.learn(string(name))
}

// learn remembers a name, and returns the remembered string.
func (k *nameTexts) learn(name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if text, known := k.names[name]; known {
		return text
	}
	if len(k.names) == maxKnownNames {
		k.names = map[string]string{}
	}
	k.names[name] = name
	return name
}

var errNotUTF8 = errors.New("a resource name is not valid UTF-8")

// nameBuffers are reused from request to request.
var nameBuffers = sync.Pool{New: func() any { return new([]string) }}

// mostNames is the largest capacity of a list in nameBuffers.
const mostNames = 1 << 12

// decodeRequest is proto.Unmarshal of an encoded request, without the details of its error_detail, which nobody reads.
// It keeps no reference to the bytes. into is new. used is for recycleNames once the request is not needed any more.
func decodeRequest(f *wire.RequestFields, request []byte, into proto.Message, known *knownNames) (used *[]string, err error) {
	texts := known.texts()
	var subscribe, unsubscribe []string
	var typeURL string
	var rest []byte
	for len(request) > 0 {
		num, value, n := wire.NextBytes(request)
		switch {
		case n > 0 && (num == f.Subscribe || num == f.Unsubscribe):
			if !utf8.Valid(value) {
				return used, errNotUTF8
			}
			if num == f.Unsubscribe {
				unsubscribe = append(unsubscribe, texts.text(value))
				break
			}
			if used == nil {
				used = nameBuffers.Get().(*[]string)
				subscribe = (*used)[:0]
			}
			subscribe = append(subscribe, texts.text(value))
			*used = subscribe
		case n > 0 && num == f.TypeURL && utf8.Valid(value):
			typeURL = texts.text(value) // one string for all streams
		case n > 0 && num == f.ErrorDetail:
			rest = protowire.AppendTag(rest, num, protowire.BytesType)
			rest = protowire.AppendBytes(rest, wire.Without(value, wire.StatusDetails))
		default:
			if n == 0 { // of another wire type, or not to be read
				_, _, n = protowire.ConsumeField(request)
			}
			if n < 0 {
				return used, protowire.ParseError(n)
			}
			rest = append(rest, request[:n]...)
		}
		request = request[n:]
	}
	if len(rest) > 0 {
		if err := proto.Unmarshal(rest, into); err != nil {
			return used, err
		}
	}
	switch req := into.(type) {
	case *discoveryv3.DiscoveryRequest:
		req.TypeUrl, req.ResourceNames = typeURL, subscribe
	case *discoveryv3.DeltaDiscoveryRequest:
		req.TypeUrl, req.ResourceNamesSubscribe, req.ResourceNamesUnsubscribe = typeURL, subscribe, unsubscribe
	}
	return used, nil
}

func recycleNames(list *[]string) {
	if list == nil {
		return
	}
	if clear(*list); cap(*list) <= mostNames {
		nameBuffers.Put(list)
	}
}
