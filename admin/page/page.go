// Package page is the operator's pages on the admin listener, as HTML for people and with the same
// content as JSON for commands. It knows how to show data, but not where they come from: the caller of
// [Register] reads them.
//
// The server renders pages from templates in the binary. A page loads nothing from other hosts, and
// works without its script, which only keeps it up to date (live.go).
package page

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"

	"github.com/xds-relay/xds-relay/admin"
)

//go:embed templates
var templates embed.FS

//go:embed static
var static embed.FS

// View is one page, and one JSON document with the same content.
type View struct {
	// Name is the template's, the last element of the page's path and of that of the document: /ui/clients and
	// /api/clients.
	Name string
	// Title is the page's title, unless its template defines another one, such as the name of a
	// resource.
	Title string
	// About describes the JSON document.
	About string
	// Path is the page's path, if it is not that of Name. Such a page has no document.
	Path string
	// Part is the Name of the view whose entry in the menu the page belongs to; empty for its own.
	Part string
	// Read returns the content of the view, for the query of a URL. An error is an [Error], or a failure
	// of the server.
	Read func(q url.Values) (any, error)
}

func (v *View) path() string {
	switch {
	case v.Path != "":
		return v.Path
	case v.Name == Front:
		return "/ui"
	}
	return "/ui/" + v.Name
}

// Front is the name of the first page.
const Front = "status"

// Error is why there is nothing to show.
type Error struct {
	Status int // of HTTP
	Text   string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Missing returns an error for something that does not exist.
func Missing(text string) error { return &Error{http.StatusNotFound, text} }

// Unclear returns an error for a query that is incomplete or ambiguous.
func Unclear(text string) error { return &Error{http.StatusUnprocessableEntity, text} }

// site has all pages.
type site struct {
	menu  []entry
	views []*siteView
	live  live
}

// siteView is a view of a site.
type siteView struct {
	View
	site *site
}

// parsed returns the templates of all pages, by the names of their views. It parses them when the first
// page is opened.
var parsed = sync.OnceValues(func() (map[string]*template.Template, error) {
	layout, err := template.New("layout.html").Funcs(functions).ParseFS(templates, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, err
	}
	files, err := fs.Glob(templates, "templates/*.html")
	if err != nil {
		return nil, err
	}
	all := map[string]*template.Template{}
	for _, file := range files {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		of, err := layout.Clone()
		if err != nil {
			return nil, err
		}
		if all[name], err = of.ParseFS(templates, file); err != nil {
			return nil, err
		}
	}
	return all, nil
})

// Register adds the pages and documents to the admin listener, before it serves. menu has the names of the views
// in the page's menu.
func Register(s *admin.Server, views []View, menu []string) {
	site := &site{live: live{every: liveEvery}}
	for _, name := range menu {
		for i := range views {
			if v := &views[i]; v.Name == name {
				site.menu = append(site.menu, entry{Name: name, Title: v.Title, Path: v.path()})
			}
		}
	}
	for _, v := range views {
		of := &siteView{View: v, site: site}
		site.views = append(site.views, of)
		s.Hidden(v.path(), site.html(of))
		if v.Path == "" {
			s.Page("/api/"+v.Name, v.About, site.json(of))
		}
		if v.Name == Front {
			s.Front(site.html(of))
		}
	}
	files, _ := fs.Sub(static, "static") // the folder exists
	serve := http.StripPrefix("/ui/static/", http.FileServerFS(files))
	s.Hidden("/ui/static/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		w.Header().Set("Cache-Control", "max-age=3600") // the URL has a hash of the content
		serve.ServeHTTP(w, r)
	}))
	s.Hidden("/ui/live", http.HandlerFunc(site.serveLive))
}

// entry is an entry of the menu.
type entry struct{ Name, Title, Path string }

// layoutData is what the layout shows.
type layoutData struct {
	View    *View
	Menu    []entry
	Part    string // of the menu
	Content any
	Query   url.Values
	// Again is the URL of the page itself.
	Again string
}

// policy is the Content-Security-Policy of all pages: they load nothing from other hosts, no site can
// put them in a frame, and they have no inline scripts or styles.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

func protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	// With no-referrer, browsers would send forms with the Origin null, which the guard refuses.
	h.Set("Referrer-Policy", "same-origin")
}

// html serves a view as a page.
func (s *site) html(v *siteView) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		text, err := v.render(r.URL.Query())
		if known := (*Error)(nil); errors.As(err, &known) {
			status = known.Status
			text, err = s.explain(v, r.URL.Query(), known)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		protect(h)
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write(text) // the operator's connection has gone
	})
}

// render returns a page.
func (v *siteView) render(q url.Values) ([]byte, error) {
	content, err := v.Read(q)
	if err != nil {
		return nil, err
	}
	return v.fill(q, content)
}

func (v *siteView) fill(q url.Values, content any) ([]byte, error) {
	again := v.path()
	if len(q) > 0 {
		again += "?" + q.Encode()
	}
	part := v.Part
	if part == "" {
		part = v.Name
	}
	pages, err := parsed()
	if err != nil {
		return nil, err
	}
	t := pages[v.Name]
	if t == nil {
		return nil, fmt.Errorf("the page %q has no template", v.Name)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, layoutData{View: &v.View, Menu: v.site.menu, Part: part, Content: content, Query: q, Again: again}); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// explain returns a page that shows an error.
func (s *site) explain(v *siteView, q url.Values, why *Error) ([]byte, error) {
	of := siteView{View: View{Name: "error", Title: "Not found", Part: v.Part}, site: s}
	if of.Part == "" {
		of.Part = v.Name
	}
	return of.fill(q, why)
}

// json serves a view as a document.
func (s *site) json(v *siteView) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := v.Read(r.URL.Query())
		var known *Error
		switch {
		case errors.As(err, &known):
			http.Error(w, known.Text, known.Status)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(content) // the operator's connection has gone
	})
}

// viewAt returns the view of a page's path, nil if there is none.
func (s *site) viewAt(path string) *siteView {
	if path == "/" {
		path = "/ui"
	}
	for _, v := range s.views {
		if v.path() == strings.TrimSuffix(path, "/") {
			return v
		}
	}
	return nil
}
