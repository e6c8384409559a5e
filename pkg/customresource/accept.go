package customresource

import (
	"net/http"
	"slices"
	"strings"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

const partialMetadata = "PartialObjectMetadata"

// asksForMetadata reports whether the client would rather have the metadata of
// objects than the objects.
func asksForMetadata(r *http.Request) bool {
	return isMetadata(preferred(r))
}

// preferred returns what the client would rather have than all else that it accepts; none is empty, as of what
// names no media type.
func preferred(r *http.Request) goautoneg.Accept {
	if clauses := goautoneg.ParseAccept(r.Header.Get("Accept")); len(clauses) > 0 {
		return clauses[0]
	}
	return goautoneg.Accept{}
}

// errNoList is the answer to who would have the metadata of a list of what is one object.
var errNoList = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
	Message: "you requested " + partialMetadata + "List, but the requested object is not a list: accept " + partialMetadata,
}}

// asksForListOfOne reports whether the client would have the metadata of a list of what is one object. Upstream
// takes any object without a Go type for a list, and fails with 500 when it looks for the items, after it has written.
func asksForListOfOne(r *http.Request, info *genericapirequest.RequestInfo) bool {
	if !slices.Contains([]string{"get", "create", "update", "patch"}, info.Verb) || !strings.Contains(r.Header.Get("Accept"), partialMetadata) {
		return false // without taking it apart, of nearly all
	}
	first := preferred(r)
	return isMetadata(first) && first.Params["as"] != partialMetadata && slices.Contains([]string{"v1", "v1beta1"}, first.Params["v"])
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
