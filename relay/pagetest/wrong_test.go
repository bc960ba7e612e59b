package pagetest

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/html"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// The pages describe problems in words that an operator who is called at night does not misread.

// withID returns the element with an id.
func withID(t *testing.T, root *html.Node, id string) (found *html.Node) {
	t.Helper()
	each(root, func(n *html.Node) {
		if is, ok := attribute(n, "id"); ok && is == id {
			found = n
		}
	})
	if found == nil {
		t.Fatalf("the page has no %s", id)
	}
	return found
}

// texts returns the texts of the elements with a tag and a class.
func texts(root *html.Node, tag, class string) (all []string) {
	each(root, func(n *html.Node) {
		if is, _ := attribute(n, "class"); n.Data == tag && (class == "" || slices.Contains(strings.Fields(is), class)) {
			all = append(all, textOf(n))
		}
	})
	return all
}

// wants checks that a text contains all of the given texts.
func wants(t *testing.T, where, text string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", where, want, text)
		}
	}
}

// lacks checks that a text contains none of the given texts.
func lacks(t *testing.T, where, text string, all ...string) {
	t.Helper()
	for _, not := range all {
		if strings.Contains(text, not) {
			t.Errorf("%s has %q:\n%s", where, not, text)
		}
	}
}

func resourcePath(name string) string {
	return "/ui/resource?" + url.Values{"authority": {brokenworld.Shop}, "type": {"cluster"}, "name": {name}}.Encode()
}

// Each button of a rollout says before the click what happens to which clients, and whether that can be undone.
func TestTheButtonsOfARolloutSayWhatTheyDo(t *testing.T) {
	_, b := startBroken(t)
	root, _ := b.page("/rollout")
	says := map[string]string{}
	each(root, func(n *html.Node) {
		if class, _ := attribute(n, "class"); class == "deed" {
			if of, lines := texts(n, "summary", ""), texts(n, "p", "note"); len(of) == 1 && len(lines) == 1 {
				says[of[0]] = lines[0]
			}
		}
	})
	for button, want := range map[string][]string{
		"Approve": {"All clients (1) get all changes at once", "No button takes that back"},
		"Reject":  {"Clients that were sent the change (0) get the accepted state again", "a NACK", "Approve undoes it"},
		"Thaw":    {"to a few first", "Freeze stops it"},
	} {
		wants(t, "the line under "+button, says[button], want...)
	}
	if len(says) != 3 {
		t.Errorf("the buttons say %q", says)
	}
}

// Changes that wait for a person, that a client has rejected, and that clients have not answered are described in
// different words.
func TestTheStatesOfARolloutAreToldApart(t *testing.T) {
	_, b := startBroken(t)
	root, _ := b.page("/rollout")
	wants(t, "the page of a frozen rollout", textOf(root), "1 change that not all clients have", "waits for the gate", "because the rollout is frozen", "No client has the change now")
	lacks(t, "the page of a frozen rollout", textOf(root), "not accepted", "NACKed by a client", "because –")
	for _, cell := range texts(root, "td", "") {
		if cell == "–" {
			t.Error("a reason is a dash")
		}
	}

	// Once it is thawed, clients answer.
	answer, text := b.post("/rollout/thaw", url.Values{"authority": {brokenworld.EU}})
	if answer.StatusCode >= 400 {
		t.Fatalf("thaw: %d %s", answer.StatusCode, text)
	}
	await(t, "the page says who has answered", func() error {
		root, _ := b.page("/rollout")
		if text := textOf(root); !strings.Contains(text, "1 client of 1 was sent the change: 1 acknowledged it, 0 sent a NACK, 0 not yet answered") || strings.Contains(text, "waits for the gate") {
			return fmt.Errorf("it has %s", text)
		}
		return nil
	})
}

// A change that a client has rejected is not one that waits.
func TestARejectedChangeOfARolloutSaysThatAClientHasNACKedIt(t *testing.T) {
	w, b := startBroken(t)
	w.RejectEU()
	if answer, text := b.post("/rollout/thaw", url.Values{"authority": {brokenworld.EU}}); answer.StatusCode >= 400 {
		t.Fatalf("thaw: %d %s", answer.StatusCode, text)
	}
	b.phase(t, "stopped", false, 1)
	root, _ := b.page("/rollout")
	wants(t, "the page of a rollout that was stopped", textOf(withID(t, root, "all")), "✕ NACKed by a client envoy-eu-1", "No client has the change now: 1 client sent a NACK", brokenworld.WordsEU)
	lacks(t, "the page of a rollout that was stopped", textOf(withID(t, root, "all")), "waits for the gate")
}

// The words of a NACK name the resource that is to blame. The page does not show the other resources of the response
// as rejected for their own fault.
func TestARejectedResponseSaysWhichResourceIsToBlame(t *testing.T) {
	for _, by := range []string{"wildcard", "names", "names in common"} {
		t.Run(by, func(t *testing.T) {
			w, b := startBroken(t)
			var bad atomic.Bool
			connect := func(id string) *brokenworld.Client {
				c := w.Connect(t, &corev3.Node{Id: id, Cluster: "web"}, func(string) string {
					if bad.Load() {
						return brokenworld.Words
					}
					return ""
				})
				if by == "wildcard" {
					c.Subscribe(t, xdstype.ClusterV3, "*")
				} else {
					c.Subscribe(t, xdstype.ClusterV3, "cart", "front")
				}
				c.Await(t, "front")
				return c
			}
			connect("blames")
			if by == "names in common" {
				connect("blames too")
			}
			client := func() (all map[string]operator.HeldResource) {
				var v operator.ClientView
				b.document("/api/client?client=blames&type=cluster", &v)
				all = map[string]operator.HeldResource{}
				for _, h := range v.Held {
					all[h.Name] = h
				}
				return all
			}
			await(t, "it has accepted what there is", func() error {
				if is := client(); is["cart"].State != "acked" || is["front"].State != "acked" {
					return fmt.Errorf("it has %+v", is)
				}
				return nil
			})
			bad.Store(true)
			for n := 2; n <= 3; n++ {
				before := client()["cart"].Rejected
				w.ChangeClusters(t, n)
				await(t, "it has rejected the change", func() error {
					if is := client(); is["cart"].State != "nacked" || is["front"].State != "nacked" || is["cart"].Rejected == before {
						return fmt.Errorf("it has %+v", is)
					}
					return nil
				})
				is := client()
				for name, want := range map[string]string{"cart": "named", "front": "other"} {
					if h := is[name]; h.Blame != want {
						t.Errorf("change %d: of %s it says %+v", n, name, h)
					}
				}
				if n == 3 {
					continue
				}
				root, _ := b.page(resourcePath("cart"))
				wants(t, "the page of cart", textOf(withID(t, root, "holders")), "rejected", brokenworld.Words)
				root, _ = b.page(resourcePath("front"))
				// Another client rejects everything from the beginning.
				for _, row := range texts(withID(t, root, "holders"), "tr", "") {
					switch {
					case strings.HasPrefix(row, "blames"):
						wants(t, "the page of front", row, "in a rejected response", "because of cart", "Clients may take what is good in a response")
						lacks(t, "the page of front", row, brokenworld.Words)
					case strings.HasPrefix(row, brokenworld.Rejecting):
						wants(t, "the page of front", row, "because of cart")
						lacks(t, "the page of front", row, brokenworld.Words)
					}
				}
				root, _ = b.page("/ui/client?client=blames")
				wants(t, "the client's page", textOf(withID(t, root, "tree")), "in a rejected response")
			}
		})
	}
}

var clockTime = regexp.MustCompile(`\d\d:\d\d:\d\d UTC`)

// Each age also shows the time of day, in UTC.
func TestTimesAreUTC(t *testing.T) {
	_, b := startBroken(t)
	for _, path := range []string{"/ui", "/ui/clients", "/ui/client?client=" + brokenworld.Rejecting, "/ui/authorities", "/ui/authority?name=" + brokenworld.Down, resourcePath("cart")} {
		root, _ := b.page(path)
		n := 0
		each(root, func(e *html.Node) {
			if e.Data != "time" {
				return
			}
			n++
			machine, _ := attribute(e, "datetime")
			if clock := clockTime.FindString(textOf(e)); clock == "" || !strings.Contains(machine, strings.TrimSuffix(clock, " UTC")+"Z") {
				t.Errorf("%s: %q is a time of %q", path, textOf(e), machine)
			}
		})
		if n == 0 {
			t.Errorf("%s has no time", path)
		}
	}
}

// The page distinguishes the beginning of a failure from the last attempt.
func TestAFailureHasABeginningAndALastTry(t *testing.T) {
	_, b := startBroken(t)
	await(t, "the relay has tried again", func() error {
		var a operator.AuthorityStatus
		b.document("/api/authority?name="+brokenworld.Down, &a)
		if st := a.Streams[0]; st.Failures < 2 || st.LastErrorAt == nil || !st.LastErrorAt.After(st.Since) {
			return fmt.Errorf("it is %+v", st)
		}
		return nil
	})
	root, _ := b.page("/ui/authority?name=" + brokenworld.Down)
	why := strings.Join(texts(root, "tr", "why"), " ")
	if !regexp.MustCompile(`Not connected since .*UTC .*failed attempts, the last .*UTC .*connection refused`).MatchString(why) {
		t.Errorf("the reason is %q", why)
	}
}

// An error is shown below the stream that it belongs to, not in another column. The count of resource errors is
// labelled as one.
func TestAnErrorOfAStreamStandsByItself(t *testing.T) {
	_, b := startBroken(t)
	root, _ := b.page("/ui/authority?name=" + brokenworld.Down)
	streams := withID(t, root, "streams")
	heads := texts(streams, "th", "")
	if slices.Contains(heads, "For") || slices.Contains(heads, "Errors") || !slices.Contains(heads, "Errors of resources") {
		t.Errorf("the columns are %q", heads)
	}
	for _, row := range texts(streams, "tr", "") {
		if strings.Contains(row, "connection refused") && strings.Contains(row, "xdstp names") {
			t.Errorf("an error is among the columns of %q", row)
		}
	}
	wants(t, "the row under it", strings.Join(texts(streams, "tr", "why"), " "), "connection refused")
}

// The state of a resource is distinguished from the state of the resources that it names.
func TestTheStateOfARouteIsNotThatOfItsClusters(t *testing.T) {
	_, b := startBroken(t)
	root, _ := b.page("/ui/resource?authority=" + brokenworld.Shop + "&type=route&name=web-routes")
	state := withID(t, root, "state")
	wants(t, "the state of the route", textOf(state), "Itself: ✓ present", "What it names: ✕ 1 does not exist cluster "+brokenworld.MissingCluster)
	if class, _ := attribute(state, "class"); !strings.Contains(class, "wrong") {
		t.Errorf("the state has the class %q", class)
	}
	root, _ = b.page(resourcePath("front"))
	wants(t, "the state of a cluster", textOf(withID(t, root, "state")), "Itself: ✓ present", "nothing that does not exist")
	root, _ = b.page("/ui/resources?type=route")
	wants(t, "the list", textOf(withID(t, root, "list")), "present ✕ names 1 that does not exist")
	root, _ = b.page("/ui/client?client=" + brokenworld.Healthy)
	wants(t, "the client's tree", textOf(withID(t, root, "tree")), "acknowledged ✕ names 1 that does not exist")
}

// An authority that is down shows how many clients that affects. The list of clients has exactly these.
func TestAnAuthorityThatIsDownSaysWhoIsAffected(t *testing.T) {
	_, b := startBroken(t)
	root, _ := b.page("/ui/authority?name=" + brokenworld.Down)
	wants(t, "the authority", textOf(withID(t, root, "affected")), "No server can be reached for 1 client.", "cluster1101xdstp://"+brokenworld.Down+"/envoy.config.cluster.v3.Cluster/stock")
	to := link(withID(t, root, "affected"), "1 client")
	root, _ = b.page("/ui")
	if from := link(root, "1 client is affected"); to == "" || from != to {
		t.Fatalf("the links lead to %q and %q", to, from)
	}
	root, _ = b.page(to)
	if rows := texts(withID(t, root, "list"), "tr", ""); len(rows) != 2 || !strings.HasPrefix(rows[1], brokenworld.Healthy) {
		t.Errorf("the list has %q", rows)
	}
	wants(t, "the list", textOf(root), "Only clients that use authority "+brokenworld.Down)
	var list operator.ClientList
	if b.document("/api/clients?authority="+brokenworld.Shop, &list); len(list.Clients) != 2 {
		t.Errorf("the authority that is up has %d clients", len(list.Clients))
	}
	root, _ = b.page("/ui/authority?name=" + brokenworld.Shop)
	each(root, func(n *html.Node) {
		if id, _ := attribute(n, "id"); id == "affected" {
			t.Error("an authority that is up affects somebody")
		}
	})
}

// A client that may not have an authority's resources is not affected by its outage.
func TestWhoMayNotHaveItIsNotAffected(t *testing.T) {
	w := brokenworld.StartWithRights(t)
	b := &browser{t, w.Operator}
	var a operator.AuthorityStatus
	await(t, "the authority is down", func() error {
		if b.document("/api/authority?name="+brokenworld.Down, &a); a.Affected == nil || a.Affected.LookedAt != 2 {
			return fmt.Errorf("it is %+v", a)
		}
		return nil
	})
	if is := a.Affected; is.Clients != 1 || len(is.Types) != 1 || is.Types[0].Subscriptions != 1 || !slices.Equal(is.Types[0].Names, []string{brokenworld.OfDown}) {
		t.Errorf("it affects %+v", is)
	}
	for _, query := range []string{"", "&unreachable=true"} {
		var list operator.ClientList
		if b.document("/api/clients?authority="+brokenworld.Down+query, &list); len(list.Clients) != 1 || list.Clients[0].Node != brokenworld.Trusted {
			t.Errorf("its clients are %+v", list.Clients)
		}
	}
}

// All pages use the same word for a resource that does not exist.
func TestWhatDoesNotExistHasOneWord(t *testing.T) {
	_, b := startBroken(t)
	root, _ := b.page("/ui")
	paths := []string{"/ui", "/ui/clients", "/ui/client?client=" + brokenworld.Healthy, "/ui/client?client=" + brokenworld.Rejecting, "/ui/authorities", "/ui/resources", "/rollout", "/ui/unused"}
	each(root, func(n *html.Node) {
		if href, ok := attribute(n, "href"); n.Data == "a" && ok && strings.HasPrefix(href, "/ui/") {
			paths = append(paths, href)
		}
	})
	for _, path := range paths {
		root, _ := b.page(path)
		lacks(t, path, strings.ToLower(textOf(withID(t, root, "main"))), "missing", "absent")
	}
}

// The page says "live" about itself, and not about clients.
func TestThePageSaysThatItIsLiveItself(t *testing.T) {
	_, b := startBroken(t)
	root, text := b.page("/ui")
	lacks(t, "the page", text, "up to date")
	script := ""
	each(root, func(n *html.Node) {
		if src, ok := attribute(n, "src"); ok && strings.Contains(src, "live.js") {
			_, script = b.get(src, "*/*")
		}
	})
	wants(t, "the script", script, `"page is live"`)
	lacks(t, "the script", script, `say("up to date")`)
}

// sotw is a client that speaks SotW, and whose answers the test sends.
type sotw struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	names  []string
}

func (c *sotw) send(version, nonce, words string) {
	c.t.Helper()
	r := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "sotw", Cluster: "web"}, TypeUrl: xdstype.ClusterV3, ResourceNames: c.names, VersionInfo: version, ResponseNonce: nonce}
	if words != "" {
		r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: words}
	}
	if err := c.stream.Send(r); err != nil {
		c.t.Fatal(err)
	}
}

func (c *sotw) receive() *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	r, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// A SotW client says which version of the type it has accepted. The relay does not keep the names of a
// wildcard's responses in memory, so it searches the NACK's words for the names that the client holds.
func TestASotWClientSaysWhichVersionItHas(t *testing.T) {
	for _, names := range [][]string{{"*"}, {"cart", "front"}} {
		t.Run(strings.Join(names, " "), func(t *testing.T) {
			w, b := startBroken(t)
			conn, err := grpc.NewClient(w.Clients, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c := &sotw{t, stream, names}
			c.send("", "", "")
			first := c.receive()
			for len(first.GetResources()) < 2 {
				first = c.receive()
			}
			c.send(first.GetVersionInfo(), first.GetNonce(), "")
			view := func() map[string]operator.HeldResource {
				var v operator.ClientView
				b.document("/api/client?client=sotw", &v)
				all := map[string]operator.HeldResource{}
				for _, h := range v.Held {
					all[h.Name] = h
				}
				return all
			}
			await(t, "it has accepted what there is", func() error {
				if accepted := view(); accepted["cart"].State != "acked" || accepted["front"].State != "acked" {
					return fmt.Errorf("it has %+v", accepted)
				}
				return nil
			})
			for n := 2; n <= 3; n++ {
				before := view()
				w.ChangeClusters(t, n)
				r := c.receive()
				c.send(first.GetVersionInfo(), r.GetNonce(), brokenworld.Words)
				await(t, "the page says so", func() error {
					is := view()
					for name, blame := range map[string]string{"cart": "named", "front": "other"} {
						if h := is[name]; h.Blame != blame || h.Accepted != first.GetVersionInfo() || h.Rejected == before[name].Rejected {
							return fmt.Errorf("change %d: it accepted version %q, and of %s there is %+v", n, first.GetVersionInfo(), name, h)
						}
					}
					return nil
				})
			}
			words := fmt.Sprintf("has accepted the type's version %q", first.GetVersionInfo())
			root, _ := b.page(resourcePath("cart"))
			wants(t, "the page of cart", textOf(withID(t, root, "holders")), words)
		})
	}
}
