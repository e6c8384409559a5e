package customresource

import (
	"mime"
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
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

// refuseProtobuf returns an error for an object that is written as protobuf, which no
// custom resource can be. The upstream handler knows protobuf, for what is not a custom
// resource, and panics over one.
func refuseProtobuf(r *http.Request, info *genericapirequest.RequestInfo) error {
	if (info.Verb != "create" && info.Verb != "update") || info.Subresource == "scale" {
		return nil
	}
	if mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); mediaType != runtime.ContentTypeProtobuf {
		return nil // what is malformed, upstream judges
	}
	return negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML})
}
