package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/envoyjson"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/secrets"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// DiscoveryResponses in JSON. The relay splits the message as JSON, and decodes
// each resource by itself: protojson would reject the whole message if a single Any,
// however deep, is of a type that the relay does not know.

// answerJSON is a DiscoveryResponse whose resources are not decoded yet.
type answerJSON struct {
	version, typeURL  string
	resources, errors []json.RawMessage
}

// parseJSON parses a DiscoveryResponse, but not its resources.
func parseJSON(text []byte) (*answerJSON, error) {
	fields, err := object(text)
	if err != nil {
		return nil, fmt.Errorf("no DiscoveryResponse in JSON: %w", err)
	}
	a := &answerJSON{}
	for _, f := range []struct {
		name string
		into any
	}{
		{"version_info", &a.version}, {"type_url", &a.typeURL},
		{"resources", &a.resources}, {"resource_errors", &a.errors},
	} {
		if err := fields.get(f.name, f.into); err != nil {
			return nil, fmt.Errorf("no DiscoveryResponse in JSON: %w", err)
		}
	}
	// A bad resource is rejected by itself. But an answer with very many resources that are not
	// even objects is rejected as a whole: rejecting each would take long.
	const most = 1000
	bad := 0
	for _, text := range a.resources {
		if text = bytes.TrimSpace(text); len(text) == 0 || text[0] != '{' {
			bad++
		}
	}
	if bad > most {
		return nil, fmt.Errorf("no DiscoveryResponse in JSON: %d of its resources are not objects", bad)
	}
	return a, nil
}

// timed reports whether any resource of the answer may have a TTL.
func (a *answerJSON) timed() bool {
	return slices.ContainsFunc(a.resources, func(text json.RawMessage) bool {
		return bytes.Contains(text, []byte(`"ttl"`)) && bytes.Contains(text, []byte(xdstype.Wrapper))
	})
}

// decode returns the response to a request for a type. Errors of single resources
// are in the resources.
func (a *answerJSON) decode(typeURL string) (*session.Response, error) {
	if a.typeURL != "" && a.typeURL != typeURL {
		return nil, fmt.Errorf("the answer is of type %q (want %q, as requested)", loglines.Clip(a.typeURL), typeURL)
	}
	r := &session.Response{Version: a.version, TypeURL: typeURL}
	for _, text := range a.resources {
		resource, ignored := decodeResource(text)
		r.Resources = append(r.Resources, resource)
		if len(ignored) > 0 && r.Ignored == "" {
			r.Ignored = fmt.Sprintf("%s of %q: %s", envoyjson.Join(ignored[0].Path, secrets.FieldName(ignored[0].Field)), resource.Name, ignored[0].Text)
		}
	}
	for i, text := range a.errors {
		b, err := decodeError(text)
		if err == nil {
			err = r.AddError(b)
		}
		if err != nil {
			return nil, fmt.Errorf("resource_errors[%d]: %w", i, err)
		}
	}
	return r, nil
}

// decodeResource decodes one element of resources.
func decodeResource(text json.RawMessage) (_ session.Resource, ignored []envoyjson.Ignored) {
	var a anypb.Any
	ignored, err := unmarshal(text, &a)
	if err != nil {
		return session.Resource{Raw: text, Name: nameJSON(text), Err: err}, nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&a)
	if err != nil {
		return session.Resource{Raw: text, Name: nameJSON(text), Err: err}, nil
	}
	return session.ParseAny(b, ""), ignored
}

// decodeError returns an element of resource_errors encoded as protobuf. It drops the
// details, which may be of types that the relay does not know, and which nobody uses.
func decodeError(text json.RawMessage) ([]byte, error) {
	fields, err := object(text)
	if err != nil {
		return nil, err
	}
	var name, detail json.RawMessage
	if err := errors.Join(fields.get("resource_name", &name), fields.get("error_detail", &detail)); err != nil {
		return nil, err
	}
	e := &discoveryv3.ResourceError{}
	if name != nil {
		e.ResourceName = &discoveryv3.ResourceName{}
		if _, err := unmarshal(name, e.ResourceName); err != nil {
			return nil, err
		}
	}
	if detail != nil {
		of, err := object(detail)
		if err != nil {
			return nil, err
		}
		delete(of, "details")
		if detail, err = json.Marshal(of); err != nil {
			return nil, err
		}
		e.ErrorDetail = &statuspb.Status{}
		if _, err := unmarshal(detail, e.ErrorDetail); err != nil {
			return nil, err
		}
	}
	return proto.Marshal(e)
}

// nameJSON returns the name of a resource that cannot be decoded, empty if the name
// cannot be found. A wrapped resource has it in the Resource, any other in its field 1.
func nameJSON(text json.RawMessage) (name string) {
	fields, err := object(text)
	if err != nil {
		return ""
	}
	var typeURL string
	if fields.get("@type", &typeURL) != nil {
		return ""
	}
	t, err := descriptors.Types{}.FindMessageByURL(typeURL)
	if err != nil {
		return ""
	}
	key := protoreflect.Name("name")
	if typeURL != xdstype.Wrapper {
		field := t.Descriptor().Fields().ByNumber(1)
		if field == nil || field.Kind() != protoreflect.StringKind || field.IsList() {
			return ""
		}
		key = field.Name()
	}
	if fields.get(string(key), &name) != nil {
		return ""
	}
	var inner json.RawMessage
	if name == "" && typeURL == xdstype.Wrapper && fields.get("resource", &inner) == nil && inner != nil {
		var again string
		if of, err := object(inner); err == nil && of.get("@type", &again) == nil && again != xdstype.Wrapper {
			return nameJSON(inner)
		}
	}
	return name
}

// jsonObject is a message in JSON.
type jsonObject map[string]json.RawMessage

func object(text []byte) (jsonObject, error) {
	var o jsonObject
	err := json.Unmarshal(text, &o)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) || err == nil && o == nil {
		return nil, errors.New("not an object")
	}
	return o, err
}

// get reads a field, which may have its name of the proto file or its camel-case name. If the
// field is missing or null, into stays as it is.
func (o jsonObject) get(name string, into any) error {
	value, ok := o[name]
	if camel := camelCase(name); camel != name {
		other, both := o[camel]
		switch {
		case both && ok:
			return fmt.Errorf("%s occurs twice, also as %s", name, camel)
		case both:
			value = other
		}
	}
	if value == nil {
		return nil
	}
	err := json.Unmarshal(value, into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s is a JSON %s", name, wrong.Value)
	}
	return err
}

// camelCase returns the JSON name of a field.
func camelCase(name string) string {
	var b strings.Builder
	for i, word := range strings.Split(name, "_") {
		if i > 0 && word != "" {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		b.WriteString(word)
	}
	return b.String()
}

// unmarshal is envoyjson.Unmarshal with errors that do not quote values, because values may
// be secrets.
func unmarshal(text []byte, m proto.Message) ([]envoyjson.Ignored, error) {
	ignored, err := envoyjson.Unmarshal(text, m)
	if err == nil {
		return ignored, nil
	}
	if what := secrets.Fault(err); what != "" {
		return nil, errors.New(what)
	}
	return nil, errors.New("not the JSON form of its type")
}
