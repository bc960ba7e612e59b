package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// The base of a comparison is built from an archive of its commit. So the checkout may
// have uncommitted changes, and no worktree is left over.

type base struct {
	binary string
	name   string // the commit, for people
}

func buildBase(dir, commit string) (base, error) {
	top, err := git("", "rev-parse", "--show-toplevel")
	if err != nil {
		return base{}, fmt.Errorf("-base needs a clone of the repository: %w", err)
	}
	hash, err := git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", commit+"^{commit}")
	if err != nil {
		return base{}, fmt.Errorf("-base: there is no commit %q in %s (want a hash, a tag or a branch)", commit, top)
	}
	name, err := git(top, "log", "-1", "--format=%h (%s)", hash)
	if err != nil {
		return base{}, err
	}
	source := filepath.Join(dir, "base")
	if err := extract(top, hash, source); err != nil {
		return base{}, fmt.Errorf("-base: cannot take the files of %s: %w", name, err)
	}
	binary := filepath.Join(dir, "xds-relay-base")
	cmd := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/xds-relay")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return base{}, fmt.Errorf("-base: cannot build ./cmd/xds-relay of %s: %w\n%s", name, err, out)
	}
	return base{binary, name}, os.RemoveAll(source)
}

// thisCheckout is the name of the relay that is compared with the base.
func thisCheckout() string {
	name, err := git("", "log", "-1", "--format=%h (%s)")
	if err != nil {
		return "This binary"
	}
	if changes, err := git("", "status", "--porcelain", "--untracked-files=no"); err == nil && changes != "" {
		name += " with changes that are not committed"
	}
	return name
}

func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) && len(ended.Stderr) > 0 {
		err = errors.New(strings.TrimSpace(string(ended.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// extract writes the files of a commit to a folder.
func extract(repository, hash, to string) error {
	cmd := exec.Command("git", "archive", "--format=tar", hash)
	cmd.Dir = repository
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = untar(out, to)
	if _, e := io.Copy(io.Discard, out); err == nil { // otherwise git blocks
		err = e
	}
	if e := cmd.Wait(); e != nil {
		err = errors.Join(err, e, errors.New(words.String()))
	}
	return err
}

func untar(from io.Reader, to string) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	for files := tar.NewReader(from); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg { // folders are created with their files; links are not Go code
			continue
		}
		if err := root.MkdirAll(path.Dir(h.Name), 0o750); err != nil {
			return err
		}
		f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, files)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}
