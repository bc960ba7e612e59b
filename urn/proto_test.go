package urn

import (
	"errors"
	"strings"
	"testing"

	corev3 "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

func resourceName(t *testing.T, text string) *corev3.ResourceName {
	t.Helper()
	m := new(corev3.ResourceName)
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func resourceLocator(t *testing.T, text string) *corev3.ResourceLocator {
	t.Helper()
	m := new(corev3.ResourceLocator)
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// urnFromProto returns the URN of a ResourceName.
func urnFromProto(m *corev3.ResourceName) (URN, error) {
	return ParseURN(spell(m.GetAuthority(), m.GetResourceType(), m.GetId(), m.GetContext()))
}

func TestResourceNamesSayWhatURNsSay(t *testing.T) {
	tests := []struct{ name, text string }{
		{"xdstp:///t/", `resource_type: "t"`},
		{"xdstp://a/t/i", `authority: "a" resource_type: "t" id: "i"`},
		{"xdstp://a/t//x//", `authority: "a" resource_type: "t" id: "/x//"`},
		{
			"xdstp://a%2Fb%3F/t/x%23/%25/%3F?k%26=v%3D&x=",
			`authority: "a/b?" resource_type: "t" id: "x#/%/?" context { params { key: "k&" value: "v=" } params { key: "x" value: "" } }`,
		},
	}
	for _, tt := range tests {
		m := resourceName(t, tt.text)
		u, err := urnFromProto(m)
		if err != nil || u.String() != tt.name {
			t.Errorf("urnFromProto(%s) = %q, %v, want %q", tt.text, u, err, tt.name)
			continue
		}
		if got, err := u.Proto(); err != nil || !proto.Equal(got, m) {
			t.Errorf("%q.Proto() = %v, %v, want %s", u, got, err, tt.text)
		}
	}
}

func TestResourceLocatorsSayWhatURLsSay(t *testing.T) {
	tests := []struct{ name, text string }{
		{"xdstp://a/t/i", `authority: "a" resource_type: "t" id: "i"`},
		{"xdstp://a/t/i/*?x=1", `authority: "a" resource_type: "t" id: "i/*" exact_context { params { key: "x" value: "1" } }`},
		{"xdstp://a/t/i#entry=e", `authority: "a" resource_type: "t" id: "i" directives { entry: "e" }`},
		{
			"xdstp://a/t/i#alt=xdstp://b/t/x%2Cy%23alt=xdstp://c/t/%252523,entry=e",
			`authority: "a" resource_type: "t" id: "i"
			 directives { alt { authority: "b" resource_type: "t" id: "x,y"
			   directives { alt { authority: "c" resource_type: "t" id: "#" } } } }
			 directives { entry: "e" }`,
		},
	}
	for _, tt := range tests {
		m := resourceLocator(t, tt.text)
		u, err := URLFromProto(m)
		if err != nil || u.String() != tt.name {
			t.Errorf("URLFromProto(%s) = %q, %v, want %q", tt.text, u, err, tt.name)
			continue
		}
		if got, err := u.Proto(); err != nil || !proto.Equal(got, m) {
			t.Errorf("%q.Proto() = %v, %v, want %s", u, got, err, tt.text)
		}
	}
}

func TestMessagesThatAreNoNamesSayWhy(t *testing.T) {
	names := []struct{ text, want string }{
		{``, `xdstp name "xdstp:////": no resource type (want xdstp://authority/type/id) at offset 9`},
		{`authority: "a" id: "i"`, `xdstp name "xdstp://a//i": no resource type (want xdstp://authority/type/id) at offset 10`},
		{`resource_type: "t" id: "i/*"`, `xdstp name "xdstp:///t/i/*": glob in a URN "*" (want the name of one resource) at offset 13`},
		{`resource_type: "t" id: "\n"`, `xdstp name "xdstp:///t/%0A": control character "%0A" at offset 11`},
	}
	for _, tt := range names {
		if _, err := urnFromProto(resourceName(t, tt.text)); err == nil || err.Error() != tt.want {
			t.Errorf("urnFromProto(%s) = %v\nwant %s", tt.text, err, tt.want)
		}
	}
	if _, err := urnFromProto(nil); err == nil {
		t.Error("urnFromProto(nil) is no error")
	}
	if _, err := urnFromProto(&corev3.ResourceName{ResourceType: "t", Id: "\xff"}); err == nil || !strings.Contains(err.Error(), "invalid UTF-8") {
		t.Errorf("an id that is not UTF-8: %v", err)
	}

	locators := []struct{ text, want string }{
		{`scheme: HTTP resource_type: "t"`, `xds.core.v3.ResourceLocator.scheme: HTTP is not supported (want XDSTP)`},
		{`scheme: FILE id: "t"`, `xds.core.v3.ResourceLocator.scheme: FILE is not supported (want XDSTP)`},
		{`resource_type: "t" directives {}`, `xds.core.v3.ResourceLocator.directives[0]: neither alt nor entry`},
		{`resource_type: "t" directives { alt { scheme: HTTP } }`, `xds.core.v3.ResourceLocator.scheme: HTTP is not supported (want XDSTP)`},
		{`resource_type: "t" directives { alt {} }`, `xdstp name "xdstp:////": no resource type (want xdstp://authority/type/id) at offset 9`},
		{`resource_type: "t" directives { entry: "" }`, `xdstp name "xdstp:///t/#entry=": bad entry name (want one or more of [a-zA-Z0-9_-./~:]) at offset 18`},
		{`resource_type: "t" directives { entry: "a,b" }`, `xdstp name "xdstp:///t/#entry=a%2Cb": bad entry name "a%2Cb" (want one or more of [a-zA-Z0-9_-./~:]) at offset 18`},
		{`resource_type: "t" directives { entry: "e" } directives { entry: "f" }`, `xdstp name "xdstp:///t/#entry=e,entry=f": duplicate directive "entry" (want each once) at offset 20`},
	}
	for _, tt := range locators {
		if _, err := URLFromProto(resourceLocator(t, tt.text)); err == nil || err.Error() != tt.want {
			t.Errorf("URLFromProto(%s) = %v\nwant %s", tt.text, err, tt.want)
		}
	}
}

func TestSlashesWithinSegmentsAreNotLostInProto(t *testing.T) {
	const want = `"xdstp://a/t/x/foo%2Fbar": protobuf has no form for a / within an id segment "%2F" at offset 17`
	urn, err := ParseURN("xdstp://a/t/x/foo%2Fbar")
	if err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := urn.Proto(); !errors.As(err, &e) || err.Error() != "xdstp name "+want {
		t.Errorf("URN.Proto: %v, want %s", err, want)
	}
	url, err := ParseURL("xdstp://b/t/j#alt=xdstp://a/t/x/foo%252Fbar")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := url.Proto(); !errors.As(err, &e) || err.Error() != "xdstp name "+want {
		t.Errorf("URL.Proto: %v, want %s", err, want)
	}
}

func TestDeepLocatorsAreAnErrorInBoundedWork(t *testing.T) {
	m := &corev3.ResourceLocator{ResourceType: "t"}
	for range 5000 {
		m = &corev3.ResourceLocator{ResourceType: "t", Directives: []*corev3.ResourceLocator_Directive{
			{Directive: &corev3.ResourceLocator_Directive_Alt{Alt: m}}}}
	}
	if _, err := URLFromProto(m); err == nil || !strings.Contains(err.Error(), "too long") || len(err.Error()) > 4*maxQuoted {
		t.Errorf("URLFromProto: %v", err)
	}
}
