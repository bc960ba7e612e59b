package csds

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
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

// mostPatterns bounds the matchers of a request: the number of their patterns, of the steps of their paths, and of those
// of their regular expressions. A kilobyte of an expression can take 40 MB, if it says {1000}.
const mostPatterns = 10_000

var errTooManyPatterns = fmt.Errorf("it has more than %d patterns, or steps of regular expressions", mostPatterns)

// compiler makes the functions of one request.
type compiler struct {
	left int // of mostPatterns
}

// take counts patterns.
func (c *compiler) take(n int) error {
	if c.left -= n; c.left < 0 {
		return errTooManyPatterns
	}
	return nil
}

// matcherOf returns the function for some matchers, nil if there are none.
func matcherOf(matchers []*matcherv3.NodeMatcher) (matchesNode, error) {
	c := compiler{mostPatterns}
	var some []matchesNode
	for i, m := range matchers {
		one, err := c.nodeMatcher(m)
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

func (c *compiler) nodeMatcher(m *matcherv3.NodeMatcher) (matchesNode, error) {
	if err := c.take(1); err != nil {
		return nil, err
	}
	id := func(string) bool { return true }
	if m.GetNodeId() != nil {
		var err error
		if id, err = c.textMatcher(m.GetNodeId()); err != nil {
			return nil, fmt.Errorf(".node_id: %w", err)
		}
	}
	var all []matchesValue
	for i, of := range m.GetNodeMetadatas() {
		matches, err := c.structMatcher(of)
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

func (c *compiler) textMatcher(m *matcherv3.StringMatcher) (matchesText, error) {
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
		expression, err := c.expression("^(?:" + p.SafeRegex.GetRegex() + ")$")
		if err != nil {
			return nil, fmt.Errorf("safe_regex: %w", err)
		}
		return expression.MatchString, nil
	case nil:
		return nil, errors.New("it has no pattern (want exact, prefix, suffix, contains or safe_regex)")
	}
	return nil, errors.New("an extension as a pattern is not supported (want exact, prefix, suffix, contains or safe_regex)")
}

// expression compiles a regular expression, if it is small enough.
func (c *compiler) expression(text string) (*regexp.Regexp, error) {
	if err := c.take(len(text)); err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if err := c.take(steps(parsed)); err != nil {
		return nil, err
	}
	return regexp.Compile(text)
}

// steps returns about how many steps the program of an expression has. It stops at mostPatterns.
func steps(e *syntax.Regexp) (n int) {
	n = 1 + len(e.Rune)
	for _, sub := range e.Sub {
		n += steps(sub)
	}
	if e.Op == syntax.OpRepeat {
		n *= max(e.Min, e.Max, 1)
	}
	return min(n, mostPatterns+1)
}

func (c *compiler) structMatcher(m *matcherv3.StructMatcher) (matchesValue, error) {
	if len(m.GetPath()) == 0 {
		return nil, errors.New("it has no path")
	}
	if err := c.take(len(m.GetPath())); err != nil {
		return nil, err
	}
	var path []string
	for _, segment := range m.GetPath() {
		path = append(path, segment.GetKey())
	}
	matches, err := c.valueMatcher(m.GetValue())
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
func (c *compiler) valueMatcher(m *matcherv3.ValueMatcher) (matchesValue, error) {
	if err := c.take(1); err != nil {
		return nil, err
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_NullMatch_:
		return func(v *structpb.Value) bool { _, is := v.GetKind().(*structpb.Value_NullValue); return is }, nil
	case *matcherv3.ValueMatcher_DoubleMatch:
		return doubleMatcher(p.DoubleMatch), nil
	case *matcherv3.ValueMatcher_StringMatch:
		matches, err := c.textMatcher(p.StringMatch)
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
		one, err := c.valueMatcher(p.ListMatch.GetOneOf())
		return func(v *structpb.Value) bool { return slices.ContainsFunc(v.GetListValue().GetValues(), one) }, err
	case *matcherv3.ValueMatcher_OrMatch:
		var some []matchesValue
		for _, of := range p.OrMatch.GetValueMatchers() {
			matches, err := c.valueMatcher(of)
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
