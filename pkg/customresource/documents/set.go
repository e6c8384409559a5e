package documents

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents/openapidoc"
)

// documentSet contains the documents of one set of definitions, which are created on demand.
type documentSet struct {
	key      string
	builtIns *BuiltIns
	// only is set if documents contain nothing else, not even other built-in resources.
	only        bool
	definitions []*definitions.Definition
	versions    map[schema.GroupVersion][]*definitions.Definition
	groups      map[string]bool

	discovery discoveryDocuments
	library   *openapidoc.Library
	used      time.Time // guarded by Documents.mu
}

type discoveryDocuments struct {
	mu     sync.Mutex
	groups []metav1.APIGroup
	// root serves /apis, and core serves /api.
	root, core http.Handler
}

// handler serves a document of a set, and reports whether there is one.
type handler func(s *documentSet, w http.ResponseWriter, r *http.Request) (served bool, err error)

func sortedDefinitions(all []*definitions.Definition) []*definitions.Definition {
	return slices.SortedFunc(slices.Values(all), func(a, b *definitions.Definition) int {
		return strings.Compare(a.Schema.CRD().Name, b.Schema.CRD().Name)
	})
}

// keyOf returns the key of a set of definitions.
func keyOf(kind string, sorted []*definitions.Definition) string {
	sum := sha256.New()
	for _, definition := range sorted {
		sum.Write([]byte(definition.Schema.Hash))
		if definition.Terminating {
			sum.Write([]byte{1})
		}
		if definition.Objects != nil {
			sum.Write([]byte{2})
		}
		if definition.Verbs != nil {
			sum.Write([]byte(definition.Verbs.String()))
		}
	}
	return kind + hex.EncodeToString(sum.Sum(nil))
}

// documentHash identifies a document that may not have been created yet.
func documentHash(s openapidoc.Spec) string {
	var b bytes.Buffer
	b.WriteString(s.Hash)
	for _, d := range s.Definitions {
		b.WriteString(d.Hash)
		b.WriteString(d.Version)
	}
	return hashOf(b.Bytes())
}

// serveSpec serves a v3 document. last is the last segment of its path.
func (s *documentSet) serveSpec(w http.ResponseWriter, r *http.Request, spec openapidoc.Spec, last string) (bool, error) {
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != spec.ETag {
			// A relative URL, because the prefix of the path is unknown.
			w.Header().Set("Location", last+"?"+url.Values{"hash": {spec.ETag}}.Encode())
			w.WriteHeader(http.StatusMovedPermanently)
			return true, nil
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	if err := s.library.Serve(w, r, spec); err != nil {
		w.Header().Del("Cache-Control")
		w.Header().Del("Expires")
		return false, err
	}
	return true, nil
}
