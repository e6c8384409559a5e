package customresource

import (
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
)

const partialMetadata = "PartialObjectMetadata"

// asksForMetadata reports whether the client would rather have the metadata of
// objects than the objects.
func asksForMetadata(r *http.Request) bool {
	clauses := goautoneg.ParseAccept(r.Header.Get("Accept"))
	return len(clauses) > 0 && isMetadata(clauses[0])
}

func isMetadata(clause goautoneg.Accept) bool {
	as := clause.Params["as"]
	return clause.Params["g"] == "meta.k8s.io" && (as == partialMetadata || as == partialMetadata+"List")
}

// onlyMetadata returns the headers without the clauses that accept more than
// metadata: an answer may never fall back to whole objects.
func onlyMetadata(h http.Header) http.Header {
	h = h.Clone()
	var kept []string
	for clause := range strings.SplitSeq(strings.Join(h.Values("Accept"), ","), ",") {
		parsed := goautoneg.ParseAccept(clause)
		if len(parsed) == 1 && isMetadata(parsed[0]) {
			kept = append(kept, clause)
		}
	}
	h.Set("Accept", strings.Join(kept, ","))
	return h
}
