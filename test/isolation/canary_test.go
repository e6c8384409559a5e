package isolation

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// answer is what a server said.
type answer struct {
	code   int
	header http.Header
	body   []byte
	// err says why there is no whole answer; what came is there all the same.
	err error
}

func (a answer) String() string {
	body := a.body
	if len(body) > 600 {
		body = body[:600]
	}
	return fmt.Sprintf("%d %v %q", a.code, a.header, body)
}

// canaries are texts that no attacker has ever seen or sent: wherever one shows
// up, something has crossed.
type canaries struct {
	mu      sync.RWMutex
	needles map[string][]byte
}

// add makes text a canary, as it is and in base64, in which secrets and continue
// tokens are.
func (c *canaries) add(what, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.needles == nil {
		c.needles = map[string][]byte{}
	}
	c.needles[what] = []byte(text)
	for shift := range 3 {
		// What stands before the text, and what follows, changes its first and its
		// last letters only.
		encoded := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), text...))
		from := (shift*8 + 5) / 6
		to := (shift + len(text)) * 8 / 6
		c.needles[fmt.Sprintf("%s in base64, shifted by %d", what, shift)] = []byte(encoded[from:to])
	}
}

// in returns which canaries data holds; empty for none.
func (c *canaries) in(data []byte) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for what, needle := range c.needles {
		if bytes.Contains(data, needle) {
			return what
		}
	}
	return ""
}

// inAnswer is in for all of an answer.
func (c *canaries) inAnswer(a answer) string {
	for name, values := range a.header {
		for _, value := range append(values, name) {
			if found := c.in([]byte(value)); found != "" {
				return "header " + name + " with " + found
			}
		}
	}
	if found := c.in(a.body); found != "" {
		return "body with " + found
	}
	if a.header.Get("Content-Encoding") == "gzip" {
		if r, err := gzip.NewReader(bytes.NewReader(a.body)); err == nil {
			plain, _ := io.ReadAll(r) // a part of a stream is worth a look, too
			if found := c.in(plain); found != "" {
				return "compressed body with " + found
			}
		}
	}
	return ""
}
