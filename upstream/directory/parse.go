package directory

// From a file's bytes to its resources. In every format, each resource
// becomes a discovery Resource, which reader.add checks.

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/envoyjson"
	"github.com/xds-relay/xds-relay/internal/secrets"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

const (
	responseType = xdstype.Prefix + "envoy.service.discovery.v3.DiscoveryResponse"
)

// formats are the methods that read files, by the ending of their names.
var formats = map[string]func(*reader, []byte){
	".yaml":   (*reader).yaml,
	".yml":    (*reader).yaml,
	".json":   (*reader).json,
	".textpb": (*reader).text,
	".txtpb":  (*reader).text,
	".pbtxt":  (*reader).text,
	".pb":     (*reader).wire,
}

// isResourceFile reports whether a file of that name is read.
func isResourceFile(name string) bool {
	return !strings.HasPrefix(name, ".") && formats[path.Ext(name)] != nil
}

// id identifies a resource. No two resources of a directory may share it.
type id struct{ typeURL, key string }

// item is one resource of a file.
type item struct {
	file string // its path, where files are merged
	id
	line     int
	resource *cache.Resource
	content  *envoyjson.Value // the resource as written, if the reader keeps it and the format has it
}

// reader reads one file.
type reader struct {
	authority string
	name      string // of the file, for errors
	data      []byte
	tally     *taster.Tally
	keeps     bool // the content of items

	items []item
	lines map[id]int // of the items
	errs  Errors
	// ignored are the parts of the file that are ignored, because they are not known.
	ignored Errors
	count   int    // of resources, good or bad
	want    string // type URL of the DiscoveryResponse being read, or ""
}

// parse reads a file.
func parse(authority, name string, data []byte, tally *taster.Tally) *reader {
	r := &reader{authority: authority, name: name, data: data, tally: tally}
	r.read()
	return r
}

// read reads the file.
func (r *reader) read() {
	r.lines = map[id]int{}
	if len(r.data) == 0 {
		// Most likely it was truncated and is about to be written.
		r.fail(0, errors.New("empty (to remove its resources, remove the file)"))
	} else {
		formats[path.Ext(r.name)](r, r.data)
	}
}

func (r *reader) fail(line int, err error) {
	r.errs = append(r.errs, Error{File: r.name, Line: line, Err: err})
}

func (r *reader) json(data []byte) {
	document, err := envoyjson.JSON(data)
	if err != nil {
		r.fail(err.Line, err.Err)
		return
	}
	r.document(document)
}

func (r *reader) yaml(data []byte) {
	documents, err := envoyjson.YAML(data)
	for _, d := range documents {
		r.document(d)
	}
	if err != nil {
		r.fail(err.Line, err.Err)
	}
}

// document reads a document: one message or a list of messages.
func (r *reader) document(v *envoyjson.Value) {
	if v.Kind != envoyjson.List {
		r.element(v)
		return
	}
	for _, item := range v.Items {
		r.element(item)
	}
}

// element reads one message of a document.
func (r *reader) element(v *envoyjson.Value) {
	t := v.TypeURL()
	if t == responseType || t == "" && v.Field("resources", "version_info", "versionInfo") != nil {
		r.response(v.Without("@type"))
		return
	}
	r.resource(v)
}

// response reads a DiscoveryResponse.
func (r *reader) response(v *envoyjson.Value) {
	resources, rest := v.Field("resources"), v.Without("resources")
	if again := rest.Field("resources"); again != nil {
		r.fail(again.Line, errors.New(`"resources" twice in one DiscoveryResponse`))
		return
	}
	var m discoveryv3.DiscoveryResponse
	r.decode(rest, &m)
	if resources == nil {
		return
	}
	if resources.Kind != envoyjson.List {
		r.fail(resources.Line, errors.New(`"resources" is not a list`))
		return
	}
	r.want = m.TypeUrl
	for _, item := range resources.Items {
		r.resource(item)
	}
	r.want = ""
}

// resource reads a Resource or a bare resource.
func (r *reader) resource(v *envoyjson.Value) {
	t, inner := v.TypeURL(), v.Field("resource")
	switch {
	case t == xdstype.Wrapper || t == "" && inner != nil:
		rest := v.Without("@type").Without("resource")
		if again := rest.Field("resource"); again != nil {
			r.fail(again.Line, errors.New(`"resource" twice in one Resource`))
			return
		}
		var m discoveryv3.Resource
		if !r.decode(rest, &m) {
			return
		}
		if inner != nil {
			m.Resource = &anypb.Any{}
			if !r.decode(inner, m.Resource) {
				return
			}
		}
		r.add(v.Line, &m, inner)
	case v.Field("@type") != nil:
		var bare anypb.Any
		if r.decode(v, &bare) {
			r.add(v.Line, &discoveryv3.Resource{Resource: &bare}, v)
		}
	default:
		r.fail(v.Line, errors.New(`neither a resource (with "@type") nor a Resource (with "resource") nor a DiscoveryResponse (with "resources")`))
	}
}

// decode decodes a part of a document into m. It returns false, and records the error, if it cannot.
func (r *reader) decode(v *envoyjson.Value, m proto.Message) bool {
	ignored, line, err := v.Unmarshal(m)
	for _, i := range ignored {
		r.ignored = append(r.ignored, Error{File: r.name, Line: i.Line, Path: envoyjson.Join(i.Path, secrets.FieldName(i.Field)), Err: errors.New(i.Text)})
	}
	if err == nil {
		return true
	}
	_, _, message := explain(err)
	r.fail(cmp.Or(line, v.Line), errors.New(message))
	return false
}

// add adds a resource, or its error. The line is 0 and the content nil if they are not known.
func (r *reader) add(line int, m *discoveryv3.Resource, content *envoyjson.Value) {
	r.count++
	// In a DiscoveryResponse, the Resource itself may be in an Any.
	for m.GetResource().GetTypeUrl() == xdstype.Wrapper {
		var inner discoveryv3.Resource
		if err := proto.Unmarshal(m.Resource.Value, &inner); err != nil {
			r.fail(line, fmt.Errorf("resource %d: not a discovery Resource: %w", r.count, err))
			return
		}
		m = &inner
	}
	name := m.Name
	if name == "" {
		name = nameInside(m.GetResource())
	}
	if line == 0 {
		line = r.lineOf(name)
	}
	it, err := r.item(name, m)
	if err != nil {
		if name == "" && line == 0 {
			err = fmt.Errorf("resource %d: %w", r.count, err)
		}
		r.fail(line, err)
		return
	}
	if first, ok := r.lines[it.id]; ok {
		at := "before"
		if first > 0 {
			at = fmt.Sprintf("on line %d", first)
		}
		r.fail(line, fmt.Errorf("%s is in this file already, %s", describe(it.typeURL, name), at))
		return
	}
	it.line = line
	if r.keeps {
		it.content = content
	}
	r.lines[it.id] = line
	r.items = append(r.items, it)
}

// item checks a resource and encodes it for the cache.
func (r *reader) item(name string, m *discoveryv3.Resource) (item, error) {
	content := m.GetResource()
	typeURL := content.GetTypeUrl()
	message, hasPrefix := strings.CutPrefix(typeURL, xdstype.Prefix)
	switch {
	case content == nil || typeURL == "" && len(content.Value) == 0:
		return item{}, fmt.Errorf("Resource %q has nothing in its field resource", name) //nolint:staticcheck // Resource is the message's name
	case !hasPrefix || !protoreflect.FullName(message).IsValid():
		return item{}, fmt.Errorf("type URL %q (want %sa.message.Name)", typeURL, xdstype.Prefix)
	case typeURL == responseType:
		return item{}, errors.New("a DiscoveryResponse is not a resource")
	case typeURL == xdstype.Locator && r.want != typeURL:
		return r.redirect(name, m)
	case r.want != "" && r.want != typeURL:
		return item{}, fmt.Errorf("%s in a DiscoveryResponse whose type_url is %q", describe(typeURL, name), r.want)
	}
	if _, err := wire.InnerName(content.Value); err != nil {
		return item{}, fmt.Errorf("%s: not a protobuf message: %w", describe(typeURL, name), err)
	}
	switch {
	case name == "":
		return item{}, fmt.Errorf("%s has no name (if the type has none inside, give it in a Resource)", message)
	case !utf8.ValidString(name):
		return item{}, fmt.Errorf("%s: the name is not UTF-8", describe(typeURL, name))
	case m.Ttl != nil:
		return item{}, fmt.Errorf("%s has a ttl, which nothing would renew (remove it)", describe(typeURL, name))
	}
	if err := r.taste(name, content); err != nil {
		return item{}, fmt.Errorf("%s %w", describe(typeURL, name), err)
	}
	return r.encode(name, typeURL, m, "")
}

// taste returns why a resource is refused, nil if it is not.
func (r *reader) taste(name string, content *anypb.Any) error {
	check := r.tally.Mode()
	verdict := check.Taste(taster.Of(content.TypeUrl), content.Value)
	if verdict == nil {
		r.tally.Passed("", content.TypeUrl, name)
		return nil
	}
	r.tally.Failed("", content.TypeUrl, name, verdict, 0)
	if !check.Refuses(verdict) {
		return nil
	}
	return verdict
}

// encode encodes a resource of a type for the cache.
func (r *reader) encode(name, typeURL string, m *discoveryv3.Resource, redirect string) (item, error) {
	key, err := keyOf(r.authority, typeURL, name)
	if err != nil {
		return item{}, err
	}
	content := m.GetResource()
	rest := proto.CloneOf(m)
	rest.Name, rest.Version, rest.Resource = "", "", nil
	extra, err := proto.MarshalOptions{Deterministic: true}.Marshal(rest)
	if err != nil {
		return item{}, fmt.Errorf("%s: %w", describe(typeURL, name), err)
	}
	return item{id: id{typeURL, key}, resource: cache.NewResource(cache.Spec{
		Name: name, Version: m.Version, TypeURL: content.TypeUrl, Value: content.Value, Extra: extra,
		Redirect: redirect,
	})}, nil
}

// nameInside returns the name in field 1 of a resource. It is "" if there is none, as in a known type
// whose field 1 is no string.
func nameInside(m *anypb.Any) string {
	t, err := descriptors.Types{}.FindMessageByURL(m.GetTypeUrl())
	if err == nil {
		f := t.Descriptor().Fields().ByNumber(1)
		if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() {
			return ""
		}
	}
	if !xdstype.HasInnerName(m.GetTypeUrl()) {
		return ""
	}
	name, err := wire.InnerName(m.GetValue())
	if err != nil {
		return ""
	}
	return name
}

// lineOf returns the first line of a text file that contains a name, 0 if
// there is none.
func (r *reader) lineOf(name string) int {
	at := bytes.Index(r.data, []byte(name))
	if name == "" || at < 0 || path.Ext(r.name) == ".pb" {
		return 0
	}
	return 1 + bytes.Count(r.data[:at], []byte("\n"))
}

// describe names a resource for people: Cluster "foo".
func describe(typeURL, name string) string {
	return fmt.Sprintf("%s %q", typeURL[strings.LastIndexAny(typeURL, "./")+1:], name)
}
