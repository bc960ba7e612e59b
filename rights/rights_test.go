package rights

import (
	"fmt"
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/identity"
)

type tb interface {
	Helper()
	Fatalf(format string, args ...any)
}

func parse(t tb, expression string) *cel.Ast {
	t.Helper()
	if expression == "" {
		return nil
	}
	env, err := Environment()
	if err != nil {
		t.Fatalf("%v", err)
	}
	checked, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatalf("%s: %v", expression, issues.Err())
	}
	return checked
}

// rulesOf compiles pairs of when and allow.
func rulesOf(t tb, texts ...[2]string) *Rules {
	t.Helper()
	var rules []*Rule
	for _, text := range texts {
		r, err := NewRule(parse(t, text[0]), parse(t, text[1]))
		if err != nil {
			t.Fatalf("%v: %v", text, err)
		}
		rules = append(rules, r)
	}
	return New(rules)
}

const (
	secret  = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
)

func TestFirstMatchDecidesAndWhatCannotBeEvaluatedDenies(t *testing.T) {
	rules := rulesOf(t,
		[2]string{`type_url.endsWith(".Secret")`, `name.startsWith(identity.spiffe_path)`},
		[2]string{`authority == "payments.example.com"`, `identity.spiffe_id in ["spiffe://example.org/ns/pay/sa/gw"]`},
		[2]string{`name == "x" || name.contains("/x/") && name != "/x/y"`, `false`},
		[2]string{`name.matches("^[0-9]+$")`, `identity.claims.sub == "a"`},
		[2]string{`identity.uid == 0 && name.endsWith("root")`, `true`},
		[2]string{`authority == "open"`, `true`},
	)
	gateway := &identity.Identity{Source: identity.MTLS, SPIFFEID: "spiffe://example.org/ns/pay/sa/gw", TrustDomain: "example.org", SPIFFEPath: "/ns/pay/sa/gw"}
	root := uint32(0)
	for _, tt := range []struct {
		rule                     string
		id                       *identity.Identity
		authority, typeURL, name string
		want                     Decision
	}{
		{"the first rule that matches decides", gateway, "payments.example.com", secret, "/ns/pay/sa/gw/cert", Decision{Allowed: true, Rule: 0}},
		{"also if it denies what a later one allows", gateway, "payments.example.com", secret, "/ns/other", Decision{Rule: 0}},
		{"an allow that cannot be evaluated denies", identity.Anonymous(nil), "open", secret, "/ns/pay", Decision{Rule: 0, Failed: true}},
		{"a rule without the name", gateway, "payments.example.com", cluster, "any", Decision{Allowed: true, Rule: 1}},
		{"the same for another", identity.Anonymous(nil), "payments.example.com", cluster, "any", Decision{Rule: 1, Failed: true}},
		{"a name", gateway, "open", cluster, "x", Decision{Rule: 2}},
		{"a part of a name", gateway, "open", cluster, "/x/z", Decision{Rule: 2}},
		{"a when that cannot be evaluated denies", gateway, "open", cluster, "the-root", Decision{Rule: 4, Failed: true}},
		{"an operand that cannot be evaluated does not matter where the other decides", &identity.Identity{Source: identity.Unix, UID: &root}, "open", cluster, "/x/y", Decision{Allowed: true, Rule: 5}},
		{"a regular expression, and a claim that is not there", gateway, "open", cluster, "17", Decision{Rule: 3, Failed: true}},
		{"a claim", &identity.Identity{Source: identity.JWT, Claims: map[string]any{"sub": "a"}}, "open", cluster, "17", Decision{Allowed: true, Rule: 3}},
		{"no rule", &identity.Identity{Source: identity.Unix, UID: &root}, "closed", cluster, "y", Decision{Rule: -1}},
	} {
		if got := rules.Class(tt.id).At(tt.authority, tt.typeURL).Decide(tt.name); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.rule, got, tt.want)
		}
	}
}

func TestNameWithoutCanonicalSpellingIsAllowedOnlyWhereNoRuleReadsTheName(t *testing.T) {
	rules := rulesOf(t,
		[2]string{`authority == "a"`, `true`},
		[2]string{`authority == "b"`, `name != "x"`},
		[2]string{`name == "x"`, `false`},
		[2]string{``, `true`},
	)
	class := rules.Class(identity.Anonymous(nil))
	for _, tt := range []struct {
		authority string
		want      Decision
	}{
		{"a", Decision{Allowed: true, Rule: 0}},
		{"b", Decision{Rule: 1, Failed: true}},
		{"c", Decision{Rule: 2, Failed: true}},
	} {
		if got := class.At(tt.authority, cluster).DecideUnspelled(); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.authority, got, tt.want)
		}
	}
	if got := rulesOf(t, [2]string{`authority == "a"`, `true`}).Class(identity.Anonymous(nil)).At("b", cluster).DecideUnspelled(); got != (Decision{Rule: -1}) {
		t.Errorf("no rule: got %+v", got)
	}
}

func TestClientsThatNoRuleDistinguishesAreOneClass(t *testing.T) {
	rules := rulesOf(t, [2]string{`identity.source == "jwt"`, `name.startsWith(identity.claims["kubernetes.io"].namespace) && has(identity.claims.groups)`})
	with := func(namespace, pod string, groups any) *identity.Identity {
		claims := map[string]any{"sub": pod, "kubernetes.io": map[string]any{"namespace": namespace, "pod": pod}}
		if groups != nil {
			claims["groups"] = groups
		}
		return &identity.Identity{Source: identity.JWT, Subject: pod, Claims: claims}
	}
	of := func(id *identity.Identity) uint64 { return rules.Class(id).ID }
	first := of(with("pay", "a", nil))
	if of(with("pay", "b", nil)) != first {
		t.Error("two pods of one namespace are two classes")
	}
	for what, id := range map[string]*identity.Identity{
		"another namespace":     with("other", "a", nil),
		"a claim more":          with("pay", "a", []any{}),
		"no claims":             {Source: identity.JWT},
		"empty claims":          {Source: identity.JWT, Claims: map[string]any{}},
		"a namespace elsewhere": {Source: identity.JWT, Claims: map[string]any{"kubernetes.io": "pay"}},
		"another source":        {Source: identity.MTLS, Claims: with("pay", "a", nil).Claims},
	} {
		if of(id) == first {
			t.Errorf("%s is the same class", what)
		}
	}
	if of(&identity.Identity{Source: identity.JWT}) == of(&identity.Identity{Source: identity.JWT, Claims: map[string]any{}}) {
		t.Error("no claims and empty claims are one class")
	}
}

// expressions draws a boolean expression.
func expressions(depth int) *rapid.Generator[string] {
	texts := rapid.SampledFrom([]string{`"a"`, `"/ns"`, `"/ns/a"`, `"/n"`, `authority`, `identity.spiffe_path`, `identity.claims.sub`, `identity.claims.n`, `identity.subject`, `"a" + authority`})
	return rapid.Custom(func(t *rapid.T) string {
		kind := rapid.IntRange(0, 10).Draw(t, "kind")
		if depth == 0 && kind < 5 {
			kind += 5
		}
		inner := func(what string) string { return expressions(depth-1).Draw(t, what) }
		text := func(what string) string { return texts.Draw(t, what) }
		switch kind {
		case 0, 1:
			return "(" + inner("a") + " && " + inner("b") + ")"
		case 2, 3:
			return "(" + inner("a") + " || " + inner("b") + ")"
		case 4:
			return "!(" + inner("a") + ")"
		case 5:
			return "name " + rapid.SampledFrom([]string{"==", "!="}).Draw(t, "op") + " " + text("with")
		case 6:
			return "name." + rapid.SampledFrom([]string{"startsWith", "endsWith", "contains"}).Draw(t, "op") + "(" + text("with") + ")"
		case 7:
			return "name in " + rapid.SampledFrom([]string{`["a", "/ns/a"]`, `identity.dns_names`, `identity.claims.list`, `identity.claims`, `[identity.subject]`}).Draw(t, "list")
		case 8:
			return rapid.SampledFrom([]string{"true", "false", `has(identity.claims)`, `has(identity.claims.sub)`, `identity.claims.flag`, `identity.source == "mtls"`}).Draw(t, "fixed")
		case 9:
			return text("a") + ` == ` + text("b")
		default:
			return rapid.SampledFrom([]string{
				`identity.dns_names.exists(name, name == "a")`, `identity.dns_names.exists(n, name.endsWith(n))`,
				`(has(identity.subject) ? name == identity.subject : name == "a")`, `name.size() > 3`,
			}).Draw(t, "whole")
		}
	})
}

func identities() *rapid.Generator[*identity.Identity] {
	return rapid.Custom(func(t *rapid.T) *identity.Identity {
		id := &identity.Identity{Source: rapid.SampledFrom([]identity.Source{identity.None, identity.MTLS, identity.JWT}).Draw(t, "source")}
		text := rapid.SampledFrom([]string{"", "a", "/ns", "/ns/a"})
		id.SPIFFEPath, id.Subject = text.Draw(t, "path"), text.Draw(t, "subject")
		if rapid.Bool().Draw(t, "dns") {
			id.DNSNames = []string{"a", text.Draw(t, "dns name")}
		}
		if rapid.Bool().Draw(t, "claims") {
			id.Claims = map[string]any{}
			for key, values := range map[string][]any{"sub": {"a", "/ns", 3.0, nil}, "n": {1.0, "a"}, "list": {[]any{"a", 1.0}, []any{}, "a"}, "flag": {true, false, "a"}} {
				if v := rapid.SampledFrom(append(values, "absent")).Draw(t, key); v != "absent" {
					id.Claims[key] = v
				}
			}
		}
		return id
	})
}

// A decision equals that of CEL over whole expressions, whichever parts are evaluated before the name is known and
// shared with other clients.
func TestDecisionsAreThoseOfCEL(t *testing.T) {
	env, err := Environment()
	if err != nil {
		t.Fatal(err)
	}
	eval := func(t *rapid.T, expression string, v map[string]any) truth {
		p, err := env.Program(parse(t, expression), cel.CostLimit(evalCost))
		if err != nil {
			t.Fatalf("%v", err)
		}
		switch out, _, err := p.Eval(v); {
		case err != nil:
			return failed
		case out.Value() == true:
			return isTrue
		case out.Value() == false:
			return isFalse
		}
		return failed
	}
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [2]string {
			return [2]string{expressions(2).Draw(t, "when"), expressions(2).Draw(t, "allow")}
		}), 1, 12).Draw(t, "rules")
		rules := rulesOf(t, texts...)
		for range 3 {
			id := identities().Draw(t, "identity")
			class := rules.Class(id)
			for range 4 {
				authority := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "authority")
				name := rapid.SampledFrom([]string{"", "a", "/ns", "/ns/a", "/ns/ab", "/n", "aa", "*", "1"}).Draw(t, "name")
				want := Decision{Rule: -1}
				v := map[string]any{"authority": authority, "type_url": cluster, "name": name, "identity": id}
				for i, text := range texts {
					when := eval(t, text[0], v)
					if when == isFalse {
						continue
					}
					want = Decision{Rule: i, Failed: true}
					if when == isTrue {
						allow := eval(t, text[1], v)
						want = Decision{Allowed: allow == isTrue, Rule: i, Failed: allow == failed}
					}
					break
				}
				for range 2 { // the second is remembered
					if got := class.At(authority, cluster).Decide(name); got != want {
						t.Fatalf("%v for %+v, %q of %q: got %+v, want %+v", texts, *id, name, authority, got, want)
					}
				}
			}
		}
	})
}

// What clients can make up costs a class what its bounds say.
func TestClassRemembersABoundedNumberOfDecisions(t *testing.T) {
	class := rulesOf(t, [2]string{``, `name.size() > 3`}).Class(identity.Anonymous(nil))
	for i := range 3 * maxPlaces {
		class.At(fmt.Sprint("authority-", i), cluster).Decide("x")
	}
	place := class.At("a", cluster)
	for i := range 3 * maxDecided {
		place.Decide(fmt.Sprint("name-", i))
	}
	place.Decide(strings.Repeat("x", maxDecidedName+1))
	if n := len(class.places); n > maxPlaces {
		t.Errorf("%d places", n)
	}
	if n := len(class.decided); n == 0 || n > maxDecided {
		t.Errorf("%d decisions", n)
	}
	for key := range class.decided {
		if len(key.name) > maxDecidedName {
			t.Error("a long name is remembered")
		}
	}
}

func TestWhatAllClassesShareIsBounded(t *testing.T) {
	rules := rulesOf(t, [2]string{`name.size() > 300`, `false`}, [2]string{``, `true`})
	class := rules.Class(identity.Anonymous(nil))
	place := class.At("a", cluster)
	for i := range maxFound + maxFound/2 {
		if !place.Decide(fmt.Sprint("name-", i)).Allowed {
			t.Fatal("denied")
		}
	}
	if place.Decide(strings.Repeat("x", 301)).Allowed {
		t.Error("a long name is allowed")
	}
	if n := len(rules.impersonal.found); n == 0 || n > maxFound {
		t.Errorf("%d names", n)
	}
	for i := range 2 * maxPlaces {
		class.At(fmt.Sprint("authority-", i), cluster)
	}
	if n := len(rules.impersonal.places); n > maxPlaces {
		t.Errorf("%d places", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, tt := range []struct{ of, when, last string }{
		{"place", `authority == "a%d"`, `true`},
		{"prefix", `name.startsWith("team-%d/")`, `true`},
		{"expression", `name.size() == 1000 + %d`, `true`},
	} {
		b.Run(tt.of, func(b *testing.B) {
			var texts [][2]string
			for i := range 49 {
				texts = append(texts, [2]string{fmt.Sprintf(tt.when, i), `identity.source != "none"`})
			}
			rules := rulesOf(b, append(texts, [2]string{"", tt.last})...)
			class := rules.Class(identity.Anonymous(nil))
			b.Run("first", func(b *testing.B) {
				for b.Loop() {
					class.place("a", cluster)
				}
			})
			b.Run("name", func(b *testing.B) {
				p := class.At("a", cluster)
				for b.Loop() {
					p.Decide("resource-000001")
				}
			})
		})
	}
}

func BenchmarkPlaceOfNewClass(b *testing.B) {
	for _, when := range []string{`identity.subject == "other-%d"`, `name.startsWith(identity.subject + "/other-%d/")`} {
		b.Run(when, func(b *testing.B) {
			var texts [][2]string
			for i := range 49 {
				texts = append(texts, [2]string{fmt.Sprintf(when, i), `identity.source != "none"`})
			}
			class := rulesOf(b, texts...).Class(&identity.Identity{Source: identity.MTLS, Subject: "a"})
			b.ReportAllocs()
			for b.Loop() {
				class.place("a", cluster)
			}
		})
	}
}
