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

// RemoteOptions say where the keys of an issuer are.
type RemoteOptions struct {
	URL string
	// CAFile has the roots to trust; the system's if empty.
	CAFile string
	// TokenFile has a token of the relay's own, which the server wants; none if empty.
	TokenFile string
	Log       *slog.Logger
}

// Remote fetches the keys of an issuer: from time to time, and when a token has a key that is not
// among them. The last good ones stay in use while that fails.
//
// Only one goroutine fetches. Who waits for it holds no lock.
type Remote struct {
	options RemoteOptions
	cancel  context.CancelFunc
	ended   chan struct{}
	wakes   chan struct{} // holds one
	keys    atomic.Pointer[Keys]
	set     []byte // of keys; of the goroutine that fetches
	problem string // of the last fetch; of the goroutine that fetches
	// read reads the key set: get, but in tests.
	read     func(context.Context) (set []byte, err error)
	failures atomic.Uint64

	mu    sync.Mutex
	state fetching
}

// fetching is what those who want newer keys know of the fetches.
type fetching struct {
	// next is closed when the next fetch has ended, or the one that goes on now.
	next chan struct{}
	// notBefore is when the next may begin that was asked for.
	notBefore time.Time
}

const (
	// refresh is how often keys are fetched that nobody asks for.
	refresh = 5 * time.Minute
	// fetchEvery is how often they are fetched because a token has an unknown key: anybody can
	// make up such tokens.
	fetchEvery = 10 * time.Second
	// firstRetry is when a fetch is tried again that failed. The time doubles until refresh.
	firstRetry = time.Second
	// fetchTimeout and maxSet bound an answer.
	fetchTimeout = 10 * time.Second
	maxSet       = 1 << 20
	// maxRenewal is how long a token waits for newer keys.
	maxRenewal = 3 * time.Second
)

// NewRemote begins to fetch keys.
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

// Close ends the fetching.
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
	// The keys are read after the state: a fetch in between has brought what is wanted.
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
		select { // who asked for it has been served, or is by what follows
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

// pause waits until the next fetch: as long as that, or until a token has an unknown key and
// fetchEvery has passed.
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
	return nil
}

// note logs when fetching begins to fail, and when it works again.
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

// get reads the key set. The files are read for each fetch, because they are replaced.
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
	// No proxy and no redirects: where the relay connects to is for its configuration to say.
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
