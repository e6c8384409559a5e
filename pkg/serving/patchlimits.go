package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/fieldmanagers"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
)

// WithPatchLimit returns the filter that rejects patches and objects that would be too expensive to process, see
// patchcosts. Like the others here, it must come after the filter that reads bodies.
func WithPatchLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return withBodyCheck(next, s, func(info *genericapirequest.RequestInfo, body []byte, mediaType string) (err error) {
		if info.Verb == "patch" {
			err = patchcosts.Check(body, mediaType)
		}
		if err == nil && writes(info) && mayHaveLargeMaps(body, mediaType) {
			err = patchcosts.CheckMaps(documentIn(body, mediaType, s))
		}
		return tooLarge(err)
	})
}

func tooLarge(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(err.Error())
}

func writes(info *genericapirequest.RequestInfo) bool {
	return info.Verb == "create" || info.Verb == "update" || info.Verb == "patch"
}

// mayHaveLargeMaps reports whether the body must be decoded to check the size of its maps.
func mayHaveLargeMaps(body []byte, mediaType string) bool {
	switch mediaType {
	case runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR, string(types.ApplyCBORPatchType):
		const entry = 4 // bytes
		return len(body) >= entry*patchcosts.MaxFields
	default:
		return bytes.Count(body, []byte(":")) >= patchcosts.MaxFields
	}
}

// WithListLimit returns the filter that rejects built-in objects with too many entries in lists that are merged by
// key, which are compared before admission. Custom resources must be served before.
func WithListLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return withBodyCheck(next, s, func(info *genericapirequest.RequestInfo, body []byte, mediaType string) error {
		if !writes(info) || len(body) <= patchcosts.MaxKeyed {
			return nil
		}
		return tooLarge(patchcosts.CheckLists(documentIn(body, mediaType, s)))
	})
}

// documentIn returns the decoded body, or nil if it cannot have too many entries or cannot be decoded.
func documentIn(body []byte, mediaType string, s runtime.NegotiatedSerializer) (document any) {
	switch mediaType {
	case runtime.ContentTypeCBOR, string(types.ApplyCBORPatchType):
		if cbor.Unmarshal(body, &document) != nil {
			return nil
		}
		return document
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil
		}
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

// WithFieldManagerLimit returns the filter that rejects too many entries in metadata.managedFields.
func WithFieldManagerLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return withBodyCheck(next, s, func(info *genericapirequest.RequestInfo, body []byte, mediaType string) error {
		// Upstream ignores the managers in subresource requests.
		if info.Subresource == "" && fieldmanagers.Exceed(body, mediaType, request.MaxFieldManagers) {
			return apierrors.NewBadRequest(fmt.Sprintf("metadata.managedFields has too many entries, at most %d allowed, and a patch must not copy or move entries: remove those of managers that no longer write the object", request.MaxFieldManagers))
		}
		return nil
	})
}

// withBodyCheck returns the filter that rejects requests for resources with a body that does not pass check.
// It ignores bodies that are not in memory.
func withBodyCheck(next http.Handler, s runtime.NegotiatedSerializer, check func(info *genericapirequest.RequestInfo, body []byte, mediaType string) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		if body, inMemory := bodies.Unread(r); ok && inMemory && info.IsResourceRequest {
			mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // upstream rejects malformed ones
			if err := check(info, body, mediaType); err != nil {
				respond(w, r, s, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
