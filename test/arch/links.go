package arch

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

var (
	// inline matches [text](target) and ![text](target).
	inline = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	// reference matches [name]: target.
	reference = regexp.MustCompile(`(?m)^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$`)
	heading   = regexp.MustCompile(`(?m)^#{1,6}\s+(.+?)\s*#*\s*$`)
	//nolint:gocritic // (?m) makes ^ match at the beginning of every line
	fence    = regexp.MustCompile("(?ms)^[ \t]*(```|~~~).*?^[ \t]*(```|~~~)[ \t]*$")
	codeSpan = regexp.MustCompile("`[^`\n]*`")
)

// checkLinks checks that relative links in Markdown files lead to files of the
// tree, and their fragments to headings. Links to the web are not followed: a
// test must not need the network.
func checkLinks(t *Tree) []string {
	var bad []string
	for _, doc := range t.Docs {
		content, err := os.ReadFile(filepath.Join(t.Root, doc))
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", doc, err))
			continue
		}
		for _, target := range linksIn(string(content)) {
			if why := broken(t.Root, doc, target); why != "" {
				bad = append(bad, fmt.Sprintf("%s links to %s: %s", doc, target, why))
			}
		}
	}
	return bad
}

// linksIn returns the targets of all links outside code.
func linksIn(markdown string) []string {
	text := codeSpan.ReplaceAllString(fence.ReplaceAllString(markdown, ""), "")
	var targets []string
	for _, pattern := range []*regexp.Regexp{inline, reference} {
		for _, match := range pattern.FindAllStringSubmatch(text, -1) {
			targets = append(targets, match[1])
		}
	}
	return targets
}

// broken says what is wrong with a link of doc, or "".
func broken(root, doc, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return "not a URL"
	}
	if u.Scheme != "" || u.Host != "" {
		return ""
	}
	file := doc
	if u.Path != "" {
		file = path.Join(path.Dir(doc), u.Path)
	}
	if file == ".." || strings.HasPrefix(file, "../") || path.IsAbs(u.Path) {
		return "it leaves the repository"
	}
	info, err := os.Stat(filepath.Join(root, file))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file"
	case err != nil:
		return err.Error()
	case u.Fragment == "" || info.IsDir() || !strings.HasSuffix(file, ".md"):
		return ""
	}
	content, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return err.Error()
	}
	if !anchors(string(content))[u.Fragment] {
		return "no such heading"
	}
	return ""
}

// anchors returns the fragments of a file's headings, as GitHub makes them.
func anchors(markdown string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(markdown, ""), -1) {
		anchor := slug(match[1])
		for n := 1; found[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", slug(match[1]), n)
		}
		found[anchor] = true
	}
	return found
}

// slug makes a heading's fragment: lower case, spaces to hyphens, no
// punctuation.
func slug(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ' || r == '-':
			return '-'
		case r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, text)
}
