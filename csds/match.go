package csds

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Envoy's NodeMatcher, as far as it applies to Nodes. A node matches if one of the matchers matches, and a matcher
// matches if all of its fields do.

type (
	matchesNode  func(*corev3.Node) bool
	matchesText  func(string) bool
	matchesValue func(*structpb.Value) bool
)

// matcherOf returns the function for some matchers, nil if there are none.
func matcherOf(matchers []*matcherv3.NodeMatcher) (matchesNode, error) {
	var some []matchesNode
	for i, m := range matchers {
		one, err := nodeMatcher(m)
		if err != nil {
			return nil, fmt.Errorf("[%d]%w", i, err)
		}
		some = append(some, one)
	}
	if len(some) == 0 {
		return nil, nil
	}
	return func(n *corev3.Node) bool {
		return slices.ContainsFunc(some, func(matches matchesNode) bool { return matches(n) })
	}, nil
}

func nodeMatcher(m *matcherv3.NodeMatcher) (matchesNode, error) {
	id := func(string) bool { return true }
	if m.GetNodeId() != nil {
		var err error
		if id, err = textMatcher(m.GetNodeId()); err != nil {
			return nil, fmt.Errorf(".node_id: %w", err)
		}
	}
	var all []matchesValue
	for i, of := range m.GetNodeMetadatas() {
		matches, err := structMatcher(of)
		if err != nil {
			return nil, fmt.Errorf(".node_metadatas[%d]: %w", i, err)
		}
		all = append(all, matches)
	}
	return func(n *corev3.Node) bool {
		metadata := structpb.NewStructValue(n.GetMetadata())
		return id(n.GetId()) && !slices.ContainsFunc(all, func(matches matchesValue) bool { return !matches(metadata) })
	}, nil
}

func textMatcher(m *matcherv3.StringMatcher) (matchesText, error) {
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = strings.ToLower
	}
	with := func(test func(s, part string) bool, part string) (matchesText, error) {
		part = fold(part)
		return func(s string) bool { return test(fold(s), part) }, nil
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return with(func(s, part string) bool { return s == part }, p.Exact)
	case *matcherv3.StringMatcher_Prefix:
		return with(strings.HasPrefix, p.Prefix)
	case *matcherv3.StringMatcher_Suffix:
		return with(strings.HasSuffix, p.Suffix)
	case *matcherv3.StringMatcher_Contains:
		return with(strings.Contains, p.Contains)
	case *matcherv3.StringMatcher_SafeRegex:
		expression, err := regexp.Compile("^(?:" + p.SafeRegex.GetRegex() + ")$")
		if err != nil {
			return nil, fmt.Errorf("safe_regex: %w", err)
		}
		return expression.MatchString, nil
	case nil:
		return nil, errors.New("it has no pattern (want exact, prefix, suffix, contains or safe_regex)")
	}
	return nil, errors.New("an extension as a pattern is not supported (want exact, prefix, suffix, contains or safe_regex)")
}

func structMatcher(m *matcherv3.StructMatcher) (matchesValue, error) {
	if len(m.GetPath()) == 0 {
		return nil, errors.New("it has no path")
	}
	var path []string
	for _, segment := range m.GetPath() {
		path = append(path, segment.GetKey())
	}
	matches, err := valueMatcher(m.GetValue())
	if err != nil {
		return nil, err
	}
	return func(v *structpb.Value) bool {
		for _, key := range path {
			v = v.GetStructValue().GetFields()[key]
		}
		return matches(v)
	}, nil
}

// valueMatcher returns a function that matches a value, which is nil if the Node has none.
func valueMatcher(m *matcherv3.ValueMatcher) (matchesValue, error) {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_NullMatch_:
		return func(v *structpb.Value) bool { _, is := v.GetKind().(*structpb.Value_NullValue); return is }, nil
	case *matcherv3.ValueMatcher_DoubleMatch:
		return doubleMatcher(p.DoubleMatch), nil
	case *matcherv3.ValueMatcher_StringMatch:
		matches, err := textMatcher(p.StringMatch)
		return func(v *structpb.Value) bool {
			s, is := v.GetKind().(*structpb.Value_StringValue)
			return is && matches(s.StringValue)
		}, err
	case *matcherv3.ValueMatcher_BoolMatch:
		return func(v *structpb.Value) bool {
			b, is := v.GetKind().(*structpb.Value_BoolValue)
			return is && b.BoolValue == p.BoolMatch
		}, nil
	case *matcherv3.ValueMatcher_PresentMatch:
		return func(v *structpb.Value) bool { return p.PresentMatch && v.GetKind() != nil }, nil
	case *matcherv3.ValueMatcher_ListMatch:
		one, err := valueMatcher(p.ListMatch.GetOneOf())
		return func(v *structpb.Value) bool { return slices.ContainsFunc(v.GetListValue().GetValues(), one) }, err
	case *matcherv3.ValueMatcher_OrMatch:
		var some []matchesValue
		for _, of := range p.OrMatch.GetValueMatchers() {
			matches, err := valueMatcher(of)
			if err != nil {
				return nil, err
			}
			some = append(some, matches)
		}
		return func(v *structpb.Value) bool {
			return slices.ContainsFunc(some, func(matches matchesValue) bool { return matches(v) })
		}, nil
	}
	return nil, errors.New("it has no pattern for a value")
}

func doubleMatcher(m *matcherv3.DoubleMatcher) matchesValue {
	return func(v *structpb.Value) bool {
		n, is := v.GetKind().(*structpb.Value_NumberValue)
		if !is {
			return false
		}
		if r := m.GetRange(); r != nil {
			return r.GetStart() <= n.NumberValue && n.NumberValue < r.GetEnd()
		}
		return n.NumberValue == m.GetExact()
	}
}
