package tokens

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issuer is where keys are, in a bubble.
type issuer struct {
	log     logRecord
	fetches atomic.Int64

	mu     sync.Mutex
	answer func(context.Context) ([]byte, error)
}

type logRecord struct {
	mu sync.Mutex
	strings.Builder
}

func (l *logRecord) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(b)
}

func (i *issuer) says(answer func(context.Context) ([]byte, error)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = answer
}

func (i *issuer) has(set []byte) {
	i.says(func(context.Context) ([]byte, error) { return set, nil })
}

func (i *issuer) get(ctx context.Context) ([]byte, error) {
	i.fetches.Add(1)
	i.mu.Lock()
	answer := i.answer
	i.mu.Unlock()
	return answer(ctx)
}

func (i *issuer) remote() *Remote {
	o := RemoteOptions{URL: "https://issuer.example.org/keys", Log: slog.New(slog.NewTextHandler(&i.log, nil))}
	r := &Remote{options: o, ended: make(chan struct{}), wakes: make(chan struct{}, 1), read: i.get}
	r.start()
	return r
}

func TestARotatedKeyIsFetchedWithItsFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newSigner(t, "1", nil), newSigner(t, "2", nil)
		i := &issuer{}
		i.has(set(t, first))
		r := i.remote()
		defer r.Close()
		v := newVerifier(r)
		// The keys come while the first token waits for them.
		if _, err := v.Verify(first.sign(t, jose.ES256, claims(nil), nil)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		i.has(set(t, first, second))
		if _, err := v.Verify(second.sign(t, jose.ES256, claims(nil), nil)); err != nil {
			t.Error(err)
		}
		if n := i.fetches.Load(); n != 2 {
			t.Errorf("%d fetches, want 2", n)
		}
		// A key that the issuer withdraws is gone within the time of a refresh.
		i.has(set(t, second))
		time.Sleep(refresh + time.Second)
		if _, err := v.Verify(first.sign(t, jose.ES256, claims(nil), nil)); !errors.Is(err, ErrKey) {
			t.Errorf("the withdrawn key: got %v", err)
		}
	})
}

func TestAStormOfUnknownKeysIsNoStormOfFetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		good := newSigner(t, "good", nil)
		i.has(set(t, good))
		r := i.remote()
		defer r.Close()
		v := newVerifier(r)
		token := good.sign(t, jose.ES256, claims(nil), nil)
		if _, err := v.Verify(token); err != nil {
			t.Fatal(err)
		}
		bad := newSigner(t, "bad", nil).sign(t, jose.ES256, claims(nil), nil)
		const lasting = time.Minute
		began := time.Now()
		for time.Since(began) < lasting {
			var storm sync.WaitGroup
			for range 100 {
				storm.Go(func() {
					if _, err := v.Verify(bad); !errors.Is(err, ErrKey) {
						t.Errorf("got %v", err)
					}
				})
			}
			storm.Wait()
			before := time.Now()
			if _, err := v.Verify(token); err != nil || time.Since(before) > 0 {
				t.Errorf("a good token waits for %v: %v", time.Since(before), err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := i.fetches.Load(); n < 2 || n > 1+int64(lasting/fetchEvery)+1 {
			t.Errorf("%d fetches in %v", n, lasting)
		}
	})
}

func TestAnIssuerThatFailsChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ec := newSigner(t, "ec", nil)
		i := &issuer{}
		i.has([]byte("<html>"))
		r := i.remote()
		defer r.Close()
		v := newVerifier(r)
		token := ec.sign(t, jose.ES256, claims(map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()}), nil)
		if _, err := v.Verify(token); !errors.Is(err, ErrNoKeys) {
			t.Errorf("without keys: got %v", err)
		}
		i.has(set(t, ec))
		time.Sleep(firstRetry)
		synctest.Wait()
		if _, err := v.Verify(token); err != nil {
			t.Error(err)
		}
		for _, answer := range []func(context.Context) ([]byte, error){
			func(context.Context) ([]byte, error) { return []byte(`{"keys": []}`), nil },
			func(context.Context) ([]byte, error) { return nil, errors.New("connection refused") },
			func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() },
		} {
			i.says(answer)
			before := i.fetches.Load()
			time.Sleep(2 * refresh)
			if i.fetches.Load() == before {
				t.Error("nothing was fetched")
			}
			if _, err := v.Verify(token); err != nil {
				t.Error(err)
			}
		}
		// A token with an unknown key does not wait for long.
		began := time.Now()
		if _, err := v.Verify(newSigner(t, "new", nil).sign(t, jose.ES256, claims(nil), nil)); !errors.Is(err, ErrKey) || time.Since(began) > maxRenewal {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		i.has(set(t, ec))
		time.Sleep(refresh + fetchTimeout)
		synctest.Wait()
		log := i.log.String()
		for _, want := range []string{
			`level=ERROR msg="the issuer's keys cannot be fetched: clients with tokens are refused until they can" url=https://issuer.example.org/keys error="is not a JSON Web Key Set`,
			`level=WARN msg="the issuer's keys cannot be fetched: the last good ones stay in use"`,
			`level=INFO msg="the issuer's keys can be fetched again"`,
		} {
			if !strings.Contains(log, want) {
				t.Errorf("the log lacks %s:\n%s", want, log)
			}
		}
		if n := strings.Count(log, "\n"); n > 8 {
			t.Errorf("the log has %d lines:\n%s", n, log)
		}
	})
}

func TestKeysAreFetchedOverHTTPS(t *testing.T) {
	ec := newSigner(t, "ec", nil)
	good := set(t, ec)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/keys":
			_, _ = w.Write(good)
		case "/authorized":
			if r.Header.Get("Authorization") != "Bearer the-relays-own" {
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
			_, _ = w.Write(good)
		case "/redirect":
			http.Redirect(w, r, "/keys", http.StatusFound)
		case "/large":
			_, _ = w.Write(make([]byte, maxSet+1))
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	for _, tt := range []struct {
		name string
		o    RemoteOptions
		want string
	}{
		{"keys", RemoteOptions{URL: "/keys", CAFile: ca}, ""},
		{"an own token", RemoteOptions{URL: "/authorized", CAFile: ca, TokenFile: write("token", "the-relays-own\n")}, ""},
		{"no token", RemoteOptions{URL: "/authorized", CAFile: ca}, "the answer is 401 Unauthorized (want 200 OK)"},
		{"a redirect", RemoteOptions{URL: "/redirect", CAFile: ca}, "the answer is 302 Found (want 200 OK)"},
		{"a large answer", RemoteOptions{URL: "/large", CAFile: ca}, "the answer has more than 1048576 bytes"},
		{"a stranger", RemoteOptions{URL: "/keys"}, "certificate"},
		{"a CA that is none", RemoteOptions{URL: "/keys", CAFile: write("none.pem", "")}, "none.pem has no certificates (want PEM)"},
		{"files that are not there", RemoteOptions{URL: "/keys", TokenFile: filepath.Join(dir, "absent")}, "no such file"},
	} {
		tt.o.URL = server.URL + tt.o.URL
		_, err := (&Remote{options: tt.o}).get(t.Context())
		if tt.want == "" && err != nil || tt.want != "" && !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}
