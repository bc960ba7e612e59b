package directory

// The two formats with one protobuf message per file: wire and text.

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// message reads the message of a file.
func (r *reader) message(m proto.Message) {
	if a, ok := m.(*anypb.Any); ok && a.TypeUrl == responseType {
		response := &discoveryv3.DiscoveryResponse{}
		if err := proto.Unmarshal(a.Value, response); err != nil {
			r.fail(0, fmt.Errorf("not a DiscoveryResponse: %w", err))
			return
		}
		m = response
	}
	switch m := m.(type) {
	case *discoveryv3.DiscoveryResponse:
		r.want = m.TypeUrl
		for _, a := range m.Resources {
			r.add(0, &discoveryv3.Resource{Resource: a}, nil)
		}
		r.want = ""
	case *discoveryv3.Resource:
		r.add(0, m, nil)
	case *anypb.Any:
		r.add(0, &discoveryv3.Resource{Resource: m}, nil)
	default:
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			r.fail(0, err)
			return
		}
		r.add(0, &discoveryv3.Resource{Resource: &anypb.Any{
			TypeUrl: xdstype.Prefix + string(m.ProtoReflect().Descriptor().FullName()), Value: value,
		}}, nil)
	}
}

func (r *reader) wire(data []byte) {
	m, err := wireMessage(data)
	if err == nil {
		err = proto.Unmarshal(data, m)
	}
	if err == nil && len(m.ProtoReflect().GetUnknown()) > 0 {
		err = fmt.Errorf("it has fields that a %s has not", m.ProtoReflect().Descriptor().Name())
	}
	if response, ok := m.(*discoveryv3.DiscoveryResponse); ok && err == nil && len(response.Resources) == 0 {
		// Many bare resources can be decoded as a DiscoveryResponse.
		err = errors.New("no resources (a bare resource must be in an Any; for no resources, remove the file)")
	}
	if err != nil {
		r.fail(0, fmt.Errorf("neither a DiscoveryResponse, a Resource nor an Any: %w", err))
		return
	}
	r.message(m)
}

// wireMessage returns an empty message of the type that a file has, see the package comment.
func wireMessage(data []byte) (proto.Message, error) {
	var m proto.Message = &discoveryv3.DiscoveryResponse{}
	f := wire.Walk(data)
	for f.Next() {
		switch f.OnlyBytes(); {
		case f.Num == wire.AnyTypeURL && bytes.HasPrefix(f.Bytes, []byte(xdstype.Prefix)):
			return &anypb.Any{}, nil
		case f.Num == wire.ResourceName:
			m = &discoveryv3.Resource{}
		}
	}
	if f.Err != nil {
		return nil, f.Err
	}
	return m, nil
}

// The header with the type of a text file's message, anywhere in the comments
// before everything else.
// Text format specification: "Header".
var (
	comments     = regexp.MustCompile(`\A(?:[ \t]*(?:#[^\n]*)?(?:\n|\z))*`)
	messageNamed = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*proto-message:[ \t]*(\S+)`)
)

// unmarshalText is prototext, with all types that are known.
var unmarshalText = prototext.UnmarshalOptions{Resolver: descriptors.Types{}}

func (r *reader) text(data []byte) {
	head := comments.Find(data)
	if named := messageNamed.FindSubmatchIndex(head); named != nil {
		line := 1 + bytes.Count(data[:named[2]], []byte("\n"))
		r.textOf(string(data[named[2]:named[3]]), line, data)
		return
	}
	if bytes.HasPrefix(bytes.TrimLeft(data[len(head):], " \t"), []byte("[")) {
		r.textOf("google.protobuf.Any", 0, data)
		return
	}
	// Report the error of the message type whose parser got farthest.
	var farthest Error
	farthestColumn := 0
	for _, m := range []proto.Message{&discoveryv3.DiscoveryResponse{}, &discoveryv3.Resource{}, &anypb.Any{}} {
		err := unmarshalText.Unmarshal(data, m)
		if err == nil {
			r.message(m)
			return
		}
		line, column, message := explainText(err, data)
		if line > farthest.Line || line == farthest.Line && column > farthestColumn {
			farthest = Error{Line: line, Err: fmt.Errorf("%s (read as a %s: for another message, begin with `# proto-message: its.Name`)",
				message, m.ProtoReflect().Descriptor().Name())}
			farthestColumn = column
		}
	}
	r.fail(farthest.Line, farthest.Err)
}

// textOf reads the message that the header on that line names.
func (r *reader) textOf(name string, line int, data []byte) {
	t, err := descriptors.Types{}.FindMessageByName(protoreflect.FullName(strings.TrimPrefix(name, xdstype.Prefix)))
	if err != nil {
		r.fail(line, unknown(name))
		return
	}
	m := t.New().Interface()
	if err := unmarshalText.Unmarshal(data, m); err != nil {
		line, _, message := explainText(err, data)
		r.fail(line, errors.New(message))
		return
	}
	r.message(m)
}

// explainText is explain, with the end of the file for an error without a position.
func explainText(err error, data []byte) (line, column int, message string) {
	line, column, message = explain(err)
	if line == 0 {
		return 1 + bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n")), math.MaxInt, message
	}
	return line, column, message
}
