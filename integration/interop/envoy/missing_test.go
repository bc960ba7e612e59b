package envoy

// Resources that Envoy waits for when it starts.

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// discovered returns an HTTP filter whose configuration comes by ECDS.
func discovered(name string, source *corev3.ConfigSource, types ...string) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
		ConfigSource: source, TypeUrls: types,
	}}}
}

// faultType is the type URL of a filter's configuration.
const faultType = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault"

// aborting returns the configuration of a filter that answers every request with a status.
func aborting(name string, status uint32) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: anyOf(&faultv3.HTTPFault{Abort: &faultv3.FaultAbort{
		ErrorType:  &faultv3.FaultAbort_HttpStatus{HttpStatus: status},
		Percentage: &typev3.FractionalPercent{Numerator: 100},
	}})}
}

// secret refers to a secret.
func secret(name string, source *corev3.ConfigSource) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: source}
}

// encrypted returns the transport socket of a listener.
func encrypted(common *tlsv3.CommonTlsContext) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(&tlsv3.DownstreamTlsContext{CommonTlsContext: common})},
	}
}

// needy puts Listeners in a world that need routes, the configuration of a filter, and a secret, which it does not
// have. Envoy waits so long for each.
func (s *side) needy(w world, patience time.Duration) {
	routeless, filterless, keyless := s.newAddress(), s.newAddress(), s.newAddress()
	static := func() *hcmv3.HttpConnectionManager_RouteConfig {
		return &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routesTo("static", "one")}
	}
	w.set("routeless", listenerOf("routeless", routeless, s.manager(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			RouteConfigName: "late", ConfigSource: patient(s.source(), patience),
		}},
	})))
	w.set("filterless", listenerOf("filterless", filterless, s.manager(&hcmv3.HttpConnectionManager{
		RouteSpecifier: static(),
		HttpFilters:    []*hcmv3.HttpFilter{discovered("late", patient(s.source(), patience), faultType)},
	})))
	l := listenerOf("keyless", keyless, s.manager(&hcmv3.HttpConnectionManager{RouteSpecifier: static()}))
	l.FilterChains[0].TransportSocket = encrypted(&tlsv3.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret("late", patient(s.source(), patience))},
	})
	w.set("keyless", l)
	s.routeless, s.filterless, s.keyless = call{address: routeless}, call{address: filterless}, call{address: keyless}
}

// A route, the configuration of a filter, and a secret never come: Envoy waits for each as long as its
// configuration says, then it is live. Later they come.
func TestEnvoyStartsWithoutWhatNeverComes(t *testing.T) {
	play(t, scenario{late: true, unversioned: severalNames, run: func(s *side) {
		first := s.backend("first")
		silent := func(_, name string) bool { return name == "late" }
		s.plane.script.change(func() { s.plane.script.mute = silent })
		s.push(func(w world) {
			s.shop(w, "one", first)
			s.needy(w, 3*time.Second)
		})
		s.launch()
		s.step("Envoy is live", s.envoy.live)
		s.step("requests that need none of them", s.answers(call{}, http.StatusOK, "first"))
		s.step("requests that need the routes fail", s.answers(s.routeless, http.StatusNotFound, ""))
		s.step("requests that need the filter fail", s.answers(s.filterless, http.StatusInternalServerError, ""))
		s.step("requests that need the secret fail", s.refuses(s.keyless.address))
		s.push(func(w world) {
			w.set("late", routesTo("late", "one"))
			w.set("late", aborting("late", http.StatusTeapot))
			w.set("late", s.identity("ca").certificate("late"))
		})
		s.step("requests that needed the routes", s.answers(s.routeless, http.StatusOK, "first"))
		s.step("requests that needed the filter", s.answers(s.filterless, http.StatusTeapot, ""))
		s.step("requests that needed the secret", s.handshakes(s.keyless.address, s.identity("ca")))
	}})
}

// What never comes is known to the relay as such when Envoy starts again: Envoy still waits as long as its
// configuration says, and is live.
func TestEnvoyRestartsWithoutWhatNeverComes(t *testing.T) {
	play(t, scenario{late: true, unversioned: severalNames, run: func(s *side) {
		first := s.backend("first")
		s.plane.script.change(func() { s.plane.script.mute = func(_, name string) bool { return name == "late" } })
		s.push(func(w world) {
			s.shop(w, "one", first)
			s.needy(w, 5*time.Second) // long enough for the relay's answer to come first
		})
		s.launch()
		s.step("Envoy is live", s.envoy.live)
		s.concluded(3)
		s.envoy.kill()
		s.envoy.start()
		s.step("Envoy is live again", s.envoy.live)
		s.step("requests that need none of them", s.answers(call{}, http.StatusOK, "first"))
		s.step("requests that need the routes fail", s.answers(s.routeless, http.StatusNotFound, ""))
		s.step("requests that need the filter fail", s.answers(s.filterless, http.StatusInternalServerError, ""))
		s.step("requests that need the secret fail", s.refuses(s.keyless.address))
		s.push(func(w world) {
			w.set("late", routesTo("late", "one"))
			w.set("late", aborting("late", http.StatusTeapot))
			w.set("late", s.identity("ca").certificate("late"))
		})
		s.step("requests that needed the routes", s.answers(s.routeless, http.StatusOK, "first"))
		s.step("requests that needed the filter", s.answers(s.filterless, http.StatusTeapot, ""))
		s.step("requests that needed the secret", s.handshakes(s.keyless.address, s.identity("ca")))
	}})
}

// concluded waits until the control plane has been silent about so many names for so long that the relay does not wait
// any more.
func (s *side) concluded(names int) {
	if s.relay == nil {
		return
	}
	timeouts := regexp.MustCompile(`(?m)^grpc_xds_client_resources\{.*grpc_xds_cache_state="timeout".*\} (\d+)$`)
	s.await("the relay no longer waits for answers", func() error {
		reply, err := http.Get("http://" + s.relay.Admin + "/metrics")
		if err != nil {
			return err
		}
		defer func() { _ = reply.Body.Close() }()
		text, err := io.ReadAll(reply.Body)
		if err != nil {
			return err
		}
		concluded := 0
		for _, m := range timeouts.FindAllSubmatch(text, -1) {
			n, _ := strconv.Atoi(string(m[1]))
			concluded += n
		}
		if concluded < names {
			return fmt.Errorf("it waits for %d of %d names", names-concluded, names)
		}
		return nil
	})
}

// refuses returns a condition: Envoy accepts connections at an address, and ends them before the handshake.
func (s *side) refuses(address string) func() error {
	return func() error {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		switch {
		case err == nil:
			_ = conn.Close()
			return errors.New("the handshake succeeds")
		case strings.Contains(err.Error(), "refused"):
			return err
		}
		return nil
	}
}

// handshakes returns a condition: the server at an address has a certificate of an identity's CA.
func (s *side) handshakes(address string, i *identity) func() error {
	return func() error {
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool(i), ServerName: serverName})
		if err != nil {
			return fmt.Errorf("the certificate of %s: %w", i.name, err)
		}
		return conn.Close()
	}
}
