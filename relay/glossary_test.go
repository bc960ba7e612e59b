package relay

// docs/glossary.md can only be relied on if the code uses its words.

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

func TestGlossaryHasTheWordsOfTheCode(t *testing.T) {
	words := wordsOfIdentifiers(t, "..")
	rows := glossary(t)
	if len(rows) < 10 {
		t.Fatalf("the glossary has %d rows", len(rows))
	}
	if !slices.IsSortedFunc(rows, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) }) {
		t.Error("the glossary is not in alphabetical order")
	}
	for _, row := range rows {
		term, meaning := row[0], row[1]
		for word := range strings.FieldsSeq(term) {
			if word != "on" && !words[word] && !words[word+"s"] {
				t.Errorf("%q: no name in the code has the word %q", term, word)
			}
		}
		if strings.Count(meaning, ". ") > 0 || !strings.HasSuffix(meaning, ".") {
			t.Errorf("%q: %q is not one sentence", term, meaning)
		}
	}
}

// glossary returns the terms and their meanings.
func glossary(t *testing.T) (rows [][2]string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "glossary.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "|---|---|\n")
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			rows = append(rows, [2]string{strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])})
		}
	}
	return rows
}

// wordsOfIdentifiers returns the words, in lower case, of which the identifiers in the Go files
// below root are made, apart from tests.
func wordsOfIdentifiers(t *testing.T, root string) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		var s scanner.Scanner
		s.Init(files.AddFile(path, files.Base(), len(source)), source, nil, 0)
		for {
			_, tok, text := s.Scan()
			if tok == token.EOF {
				return nil
			}
			if tok == token.IDENT {
				for _, word := range camelWords(text) {
					words[word] = true
				}
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return words
}

// camelWords splits an identifier at its capitals, into words in lower case.
func camelWords(identifier string) (words []string) {
	start := 0
	for i, r := range identifier {
		if i > start && unicode.IsUpper(r) {
			words = append(words, strings.ToLower(identifier[start:i]))
			start = i
		}
	}
	return append(words, strings.ToLower(identifier[start:]))
}
