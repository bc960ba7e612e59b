package certs

// How files are read again.

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/internal/watch"
)

// onDisk is a certificate with its key in a folder, and the File that follows it.
type onDisk struct {
	*pairFile
	cert, key string // paths
	store     *Part
	log       *lines
}

// follow follows the pair in dir/cert.pem and dir/key.pem.
func follow(t *testing.T, dir string) *onDisk {
	t.Helper()
	d := &onDisk{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	d.store, d.log = newStore(t)
	var err error
	d.pairFile, err = d.store.pair(RoleListener, d.cert, d.key)
	check(t, err)
	return d
}

func (d *onDisk) has(p *certtest.Pair) bool { return d.Get().Leaf.Equal(p.TLS.Leaf) }

func (d *onDisk) problem() string { return d.statuses()[0].Problem }

func writePair(t *testing.T, dir string, p *certtest.Pair) {
	t.Helper()
	write(t, filepath.Join(dir, "cert.pem"), p.Cert)
	write(t, filepath.Join(dir, "key.pem"), p.Key)
}

func filesOf(p *certtest.Pair) map[string][]byte {
	return map[string][]byte{"cert.pem": p.Cert, "key.pem": p.Key}
}

func TestFilesAreReadAgainHoweverTheyAreReplaced(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	pairs := []*certtest.Pair{ca.Issue(t, certtest.Loopback), ca.Issue(t, certtest.Loopback), ca.Issue(t, certtest.Loopback)}
	for _, tt := range []struct {
		name string
		// replace replaces what dir has by pairs[i]. With i == 0 there is nothing yet.
		replace func(t *testing.T, dir string, i int)
	}{
		{"written in place", func(t *testing.T, dir string, i int) { writePair(t, dir, pairs[i]) }},
		{"renamed into place", func(t *testing.T, dir string, i int) {
			replace(t, filepath.Join(dir, "cert.pem"), pairs[i].Cert)
			replace(t, filepath.Join(dir, "key.pem"), pairs[i].Key)
		}},
		{"removed and made again", func(t *testing.T, dir string, i int) {
			_ = os.Remove(filepath.Join(dir, "cert.pem"))
			_ = os.Remove(filepath.Join(dir, "key.pem"))
			writePair(t, dir, pairs[i])
		}},
		{"swapped as a whole by a symlink", func(t *testing.T, dir string, i int) {
			swap(t, dir, string(rune('a'+i)), filesOf(pairs[i]))
		}},
		{"in a folder that is a symlink, which is swapped, and then written in place", func(t *testing.T, dir string, i int) {
			if i == 2 {
				writePair(t, dir, pairs[i])
				return
			}
			version := filepath.Join(filepath.Dir(dir), string(rune('a'+i)))
			check(t, os.Mkdir(version, 0o700))
			writePair(t, version, pairs[i])
			_ = os.Remove(dir) // the test's own folder, at first
			check(t, os.Symlink(version, dir+".new"))
			check(t, os.Rename(dir+".new", dir))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "current")
			check(t, os.Mkdir(dir, 0o700))
			tt.replace(t, dir, 0)
			d := follow(t, dir)
			if !d.has(pairs[0]) {
				t.Fatal("the first pair was not read")
			}
			for i := 1; i < len(pairs); i++ {
				tt.replace(t, dir, i)
				await(t, "the new pair", func() bool { return d.has(pairs[i]) })
			}
			if got := d.problem(); got != "" {
				t.Errorf("the problem is %q, want none", got)
			}
		})
	}
}

// The certificate is written first, and the key later.
func TestAPairThatDoesNotMatchIsUsedOnceItDoes(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ca")
	first, second := ca.Issue(t, certtest.Loopback), ca.Issue(t, certtest.Loopback)
	dir := t.TempDir()
	writePair(t, dir, first)
	d := follow(t, dir)

	replace(t, d.cert, second.Cert)
	await(t, "the pair is found broken", func() bool { return d.problem() != "" })
	if !d.has(first) {
		t.Error("the last good pair was replaced by a broken one")
	}
	broken := `level=ERROR msg="changed files cannot be used, the last good ones stay in use" role=listener path=` + d.cert + "," + d.key +
		` error="` + d.cert + " and " + d.key + ` are not a certificate and its key: tls: private key does not match public key"` + "\n"
	d.log.expect(t, broken)
	// It stays broken: nothing new is logged, and each attempt is counted.
	before := d.statuses()[0].Failures
	replace(t, d.cert, second.Cert)
	await(t, "the files are read again", func() bool { return d.statuses()[0].Failures > before })
	if got := d.log.take(); got != "" {
		t.Errorf("logged again: %s", got)
	}

	replace(t, d.key, second.Key)
	await(t, "the new pair", func() bool { return d.has(second) })
	if got := d.problem(); got != "" {
		t.Errorf("the problem is %q, want none", got)
	}
	d.log.expect(t, "level=INFO msg=\"read changed files\" role=listener path="+d.cert+","+d.key+"\n")
}

func TestWhatIsBrokenKeepsTheLastGood(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	good := ca.Issue(t, certtest.Loopback)
	roots := certtest.PEM(ca, certtest.NewCA(t, "other"))
	for _, tt := range []struct {
		name, file string
		content    []byte // nil: no such file
		want       string // in the problem
	}{
		{"no certificate", "cert.pem", nil, "cert.pem: no such file or directory"},
		{"an empty certificate", "cert.pem", []byte{}, "failed to find any PEM data in certificate input"},
		{"half a certificate", "cert.pem", good.Cert[:len(good.Cert)/2], "cert.pem ends in the middle of a certificate"},
		{"half of a chain", "cert.pem", append(bytes.Clone(good.Cert), good.Cert[:len(good.Cert)/2]...), "cert.pem ends in the middle of a certificate"},
		{"no key", "key.pem", nil, "key.pem: no such file or directory"},
		{"another key", "key.pem", ca.Issue(t, certtest.Loopback).Key, "private key does not match public key"},
		{"no roots", "ca.pem", nil, "ca.pem: no such file or directory"},
		{"empty roots", "ca.pem", []byte{}, "ca.pem has no certificates (want PEM)"},
		{"text for roots", "ca.pem", []byte("moved to /etc/pki"), "ca.pem has no certificates (want PEM)"},
		{"half of the roots", "ca.pem", roots[:len(roots)*3/4], "ca.pem ends in the middle of a certificate (want PEM)"},
		{"an empty token", "token", []byte(" \n"), "token is empty (want a bearer token)"},
		{"a token of two lines", "token", []byte("eyJ.one\neyJ.two"), "token is not a bearer token (want letters, digits and -._~+/= only)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writePair(t, dir, good)
			write(t, filepath.Join(dir, "ca.pem"), roots)
			write(t, filepath.Join(dir, "token"), []byte("eyJ.good\n"))
			d := follow(t, dir)
			trusted, err := d.store.ca(filepath.Join(dir, "ca.pem"))
			check(t, err)
			token, err := d.store.Token(filepath.Join(dir, "token"))
			check(t, err)

			path := filepath.Join(dir, tt.file)
			before, err := os.ReadFile(path)
			check(t, err)
			if tt.content != nil {
				replace(t, path, tt.content)
			} else {
				check(t, os.Remove(path))
			}
			broken := func() (problems []string) {
				for _, st := range d.store.Statuses() {
					if st.Problem != "" {
						problems = append(problems, st.Problem)
					}
				}
				return problems
			}
			await(t, "it is found broken", func() bool {
				found := broken()
				return len(found) == 1 && strings.Contains(found[0], tt.want)
			})
			if !d.has(good) || len(trusted.Get().Certificates) != 2 || token.Get() != "eyJ.good" {
				t.Error("the last good ones are not in use")
			}
			d.log.expect(t, tt.want)

			replace(t, path, before)
			await(t, "it is found good again", func() bool { return len(broken()) == 0 })
			d.log.expect(t, `level=INFO msg="files can be used again"`)
		})
	}
}

func TestNoErrorOrLogHasAPartOfAKeyOrToken(t *testing.T) {
	t.Parallel()
	pair := certtest.NewCA(t, "ca").Issue(t, certtest.Loopback)
	dir := t.TempDir()
	writePair(t, dir, pair)
	write(t, filepath.Join(dir, "token"), []byte("good"))
	d := follow(t, dir)
	_, err := d.store.Token(filepath.Join(dir, "token"))
	check(t, err)
	const marker = "c2VjcmV0LW1hcmtlcg"
	write(t, d.key, []byte("-----BEGIN PRIVATE KEY-----\n"+marker+"==\n-----END PRIVATE KEY-----\n"))
	write(t, d.cert, append(bytes.Clone(pair.Key), marker...))
	write(t, filepath.Join(dir, "token"), []byte(marker+" "+marker))
	await(t, "both are found broken", func() bool {
		all := d.store.Statuses()
		return all[0].Problem != "" && all[1].Problem != ""
	})
	d.store.Store.Close() // nothing is logged any more
	text := d.log.take()
	for _, st := range d.store.Statuses() {
		text += st.Problem
	}
	if strings.Contains(text, marker) || strings.Contains(text, string(pair.Key[40:60])) {
		t.Errorf("a secret is in: %s", text)
	}
}

func TestFilesAreReadFromTimeToTimeWithoutNotice(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	first, second := ca.Issue(t, certtest.Loopback), ca.Issue(t, certtest.Loopback)
	dir := t.TempDir()
	writePair(t, dir, first)
	synctest.Test(t, func(t *testing.T) {
		s, _ := newStore(t)
		s.running.Go(func() { s.wakeOnChanges(func() {}, nil) })
		f, err := newFile(s.Store, pairKind(RoleListener), []string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")})
		check(t, err)
		writePair(t, dir, second)
		time.Sleep(watch.Rescan - time.Second)
		synctest.Wait()
		if !f.Get().Leaf.Equal(first.TLS.Leaf) {
			t.Error("the files were read before it was time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !f.Get().Leaf.Equal(second.TLS.Leaf) {
			t.Error("the files were not read when it was time")
		}
		s.Store.Close()
	})
}

func TestFilesOfARoleAreReadOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePair(t, dir, certtest.NewCA(t, "ca").Issue(t, certtest.Loopback))
	d := follow(t, dir)
	again, err := d.store.pair(RoleListener, d.cert, d.key)
	if err != nil || again != d.pairFile {
		t.Errorf("the files are followed twice (%v)", err)
	}
	if _, err := d.store.pair(RoleUpstream, d.cert, d.key); err != nil || len(d.store.Statuses()) != 2 {
		t.Errorf("got %v, %v, want one for each role", d.store.Statuses(), err)
	}
}

// A file system can hang. So other files are read, and the relay ends.
func TestAFileThatCannotBeReadToItsEndDelaysNoOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pair := certtest.NewCA(t, "ca").Issue(t, certtest.Loopback)
	writePair(t, dir, pair)
	write(t, filepath.Join(dir, "token"), []byte("first"))
	d := follow(t, dir)
	token, err := d.store.Token(filepath.Join(dir, "token"))
	check(t, err)

	check(t, syscall.Mkfifo(d.cert+".new", 0o600))
	check(t, os.Rename(d.cert+".new", d.cert)) // to open it waits for somebody who writes
	write(t, filepath.Join(dir, "token"), []byte("second"))
	await(t, "the token is read", func() bool { return token.Get() == "second" })
	if !d.has(pair) {
		t.Error("the pair changed")
	}
	began := time.Now()
	d.store.Store.Close()
	if took := time.Since(began); took > 10*closing {
		t.Errorf("Close took %v", took)
	}
	writer, err := os.OpenFile(d.cert, os.O_WRONLY, 0) // the reading ends
	check(t, err)
	check(t, writer.Close())
	ended := make(chan struct{})
	go func() { defer close(ended); d.store.running.Wait() }()
	select {
	case <-ended:
	case <-time.After(watch.Rescan / 2):
		t.Error("the reading has not ended")
	}
}

func TestACertificateThatExpiresIsLoggedOnce(t *testing.T) {
	dir, ca := t.TempDir(), certtest.NewCA(t, "ca")
	synctest.Test(t, func(t *testing.T) {
		expires := time.Now().Add(10 * time.Minute)
		writePair(t, dir, ca.Issue(t, certtest.Options{NotAfter: expires}))
		s, log := newStore(t)
		s.running.Go(func() { s.wakeOnChanges(func() {}, nil) })
		_, err := newFile(s.Store, pairKind(RoleListener), []string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")})
		check(t, err)
		time.Sleep(10*time.Minute - time.Second)
		synctest.Wait()
		if got := log.take(); got != "" {
			t.Errorf("before it expires, the log has %s", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := log.take(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="certificate has expired"`) {
			t.Errorf("after it has expired, the log has %s", got)
		}
		s.Store.Close()
	})
}
