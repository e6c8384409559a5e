package serving

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/request/patchcosts"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
)

// WithPatchLimit is the filter that rejects patches and objects which make libraries do too much, see patchcosts. It comes after
// the one that reads bodies.
func WithPatchLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		if !ok || !writes(info) {
			next.ServeHTTP(w, r)
			return
		}
		mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // upstream judges what is malformed
		if body, ok := bodies.Unread(r); ok {
			var err error
			if info.Verb == "patch" {
				err = patchcosts.Check(body, mediaType)
			}
			if err == nil && mayHaveLargeMaps(body, mediaType) {
				err = patchcosts.CheckMaps(documentIn(body, mediaType, s))
			}
			if err != nil {
				respond(w, r, s, apierrors.NewRequestEntityTooLargeError(err.Error()))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func writes(info *genericapirequest.RequestInfo) bool {
	return info.IsResourceRequest && (info.Verb == "create" || info.Verb == "update" || info.Verb == "patch")
}

// mayHaveLargeMaps reports whether a body must be decoded to find out whether one of its maps is too large.
func mayHaveLargeMaps(body []byte, mediaType string) bool {
	switch mediaType {
	case runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR, string(types.ApplyCBORPatchType):
		const entry = 4 // bytes
		return len(body) >= entry*patchcosts.MaxFields
	default:
		return bytes.Count(body, []byte(":")) >= patchcosts.MaxFields
	}
}

// WithListLimit is the filter that rejects built-in objects with too many entries in lists that are merged by key.
// It stands behind custom resources, which have limits of their own. Without it they would be compared before
// admission sees the object.
func WithListLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		if !ok || !writes(info) {
			next.ServeHTTP(w, r)
			return
		}
		mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // upstream judges what is malformed
		if body, ok := bodies.Unread(r); ok && len(body) > patchcosts.MaxKeyed {
			if err := patchcosts.CheckLists(documentIn(body, mediaType, s)); err != nil {
				respond(w, r, s, apierrors.NewRequestEntityTooLargeError(err.Error()))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// documentIn returns the document in a body that may have too many entries, and nil if it has not, or cannot be decoded.
func documentIn(body []byte, mediaType string, s runtime.NegotiatedSerializer) (document any) {
	switch mediaType {
	case runtime.ContentTypeCBOR, string(types.ApplyCBORPatchType):
		if cbor.Unmarshal(body, &document) != nil {
			return nil
		}
		return document
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		converted, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil
		}
		body = converted
	case runtime.ContentTypeProtobuf:
		serializer, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), mediaType)
		if !ok {
			return nil
		}
		object, _, err := serializer.Serializer.Decode(body, nil, nil)
		if err != nil {
			return nil
		}
		if body, err = json.Marshal(object); err != nil {
			return nil
		}
	default: // objects and patches in JSON
	}
	if bytes.Count(body, []byte(",")) < patchcosts.MaxKeyed || json.Unmarshal(body, &document) != nil {
		return nil
	}
	return document
}
