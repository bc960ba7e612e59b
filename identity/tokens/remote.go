package tokens

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// RemoteOptions are the settings for fetching an issuer's keys.
type RemoteOptions struct {
	URL string
	// CAFile has the trusted roots. Empty means those of the system.
	CAFile string
	// TokenFile has the relay's own token for the server. Empty means none.
	TokenFile string
	Log       *slog.Logger
}

// Remote fetches the keys of an issuer: periodically, and when a token's key is not among them. While fetches fail,
// the last good keys stay in use.
//
// One goroutine fetches. Callers that wait for it hold no lock.
type Remote struct {
	options RemoteOptions
	cancel  context.CancelFunc
	ended   chan struct{}
	wakes   chan struct{} // holds one
	keys    atomic.Pointer[Keys]
	set     []byte // the key set of keys; used by the goroutine that fetches
	problem string // of the last fetch; used by the goroutine that fetches
	// read reads the key set. Tests replace it; otherwise it is get.
	read     func(context.Context) (set []byte, err error)
	failures atomic.Uint64

	mu    sync.Mutex
	state fetching
}

// fetching is the state of the fetches for callers that need newer keys.
type fetching struct {
	// next is closed at the end of the current fetch, or else of the next one.
	next chan struct{}
	// notBefore is the earliest time for the next requested fetch.
	notBefore time.Time
}

const (
	// refresh is the time between fetches that nobody requested.
	refresh = 5 * time.Minute
	// fetchEvery is the shortest time between fetches because of unknown keys: anyone can invent tokens with such
	// keys.
	fetchEvery = 10 * time.Second
	// firstRetry is the time until a failed fetch is repeated. It doubles up to refresh.
	firstRetry = time.Second
	// fetchTimeout and maxSet bound the time and size of an answer.
	fetchTimeout = 10 * time.Second
	maxSet       = 1 << 20
	// maxRenewal is how long a token waits for newer keys.
	maxRenewal = 3 * time.Second
)

// NewRemote starts to fetch keys.
func NewRemote(o RemoteOptions) *Remote {
	r := &Remote{options: o, ended: make(chan struct{}), wakes: make(chan struct{}, 1)}
	r.read = r.get
	r.start()
	return r
}

func (r *Remote) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.state.next = cancel, make(chan struct{})
	go func() {
		defer close(r.ended)
		r.run(ctx)
	}()
}

// Failures returns how many fetches have failed.
func (r *Remote) Failures() uint64 { return r.failures.Load() }

// Close stops the fetches.
func (r *Remote) Close() {
	r.cancel()
	<-r.ended
}

// Keys implements Source.
func (r *Remote) Keys() *Keys { return r.keys.Load() }

// Renew implements Source.
func (r *Remote) Renew(old *Keys) *Keys {
	r.mu.Lock()
	next, early := r.state.next, time.Now().Before(r.state.notBefore)
	r.mu.Unlock()
	// The keys are loaded after the state, so the keys of a fetch in between are noticed.
	if keys := r.keys.Load(); keys != old || early {
		return keys
	}
	select {
	case r.wakes <- struct{}{}:
	default:
	}
	patience := time.NewTimer(maxRenewal)
	defer patience.Stop()
	select {
	case <-next:
	case <-patience.C:
	}
	return r.keys.Load()
}

func (r *Remote) run(ctx context.Context) {
	retry := firstRetry
	for ctx.Err() == nil {
		wait := refresh
		if err := r.fetch(ctx); err != nil {
			wait, retry = retry, min(2*retry, refresh)
		} else {
			retry = firstRetry
		}
		select { // this fetch, or the end of this iteration, serves earlier requests
		case <-r.wakes:
		default:
		}
		r.mu.Lock()
		close(r.state.next)
		r.state = fetching{next: make(chan struct{}), notBefore: time.Now().Add(fetchEvery)}
		r.mu.Unlock()
		r.pause(ctx, wait)
	}
}

// pause waits until the next fetch: for wait, or until a token has an unknown key and fetchEvery has passed.
func (r *Remote) pause(ctx context.Context, wait time.Duration) {
	earliest := time.Now().Add(min(fetchEvery, wait))
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-r.wakes:
		timer.Reset(time.Until(earliest))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
}

// fetch fetches the keys once.
func (r *Remote) fetch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	set, err := r.read(ctx)
	var keys *Keys
	if err == nil && !bytes.Equal(set, r.set) {
		keys, err = ParseKeys(set)
	}
	r.note(ctx, err)
	if err != nil || keys == nil {
		return err
	}
	r.set = set
	r.keys.Store(keys)
	r.options.Log.Info("fetched the issuer's keys", "url", r.options.URL, "keys", len(keys.all))
	keys.LogWeak(r.options.Log, r.options.URL)
	return nil
}

// note logs when fetches begin to fail, and when they succeed again.
func (r *Remote) note(ctx context.Context, err error) {
	before := r.problem
	r.problem = ""
	if err != nil {
		r.problem = err.Error()
		r.failures.Add(1)
	}
	switch log := r.options.Log.With("url", r.options.URL); {
	case r.problem == before || errors.Is(ctx.Err(), context.Canceled):
	case err == nil:
		log.Info("the issuer's keys can be fetched again")
	case r.keys.Load() == nil:
		log.Error("the issuer's keys cannot be fetched: clients with tokens are refused until they can", "error", err)
	default:
		log.Warn("the issuer's keys cannot be fetched: the last good ones stay in use", "error", err)
	}
}

// get reads the key set. It reads the files for each fetch, because they may be replaced.
func (r *Remote) get(ctx context.Context) (set []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.options.URL, nil)
	if err != nil {
		return nil, err
	}
	if r.options.TokenFile != "" {
		token, err := os.ReadFile(r.options.TokenFile)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if r.options.CAFile != "" {
		roots, err := os.ReadFile(r.options.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(roots) {
			return nil, fmt.Errorf("%s has no certificates (want PEM)", r.options.CAFile)
		}
	}
	// No proxy and no redirects: the relay connects only to configured addresses.
	client := http.Client{
		Transport:     &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s (want 200 OK)", answer.Status)
	}
	set, err = io.ReadAll(io.LimitReader(answer.Body, maxSet+1))
	if err == nil && len(set) > maxSet {
		err = fmt.Errorf("the answer has more than %d bytes", maxSet)
	}
	return set, err
}
