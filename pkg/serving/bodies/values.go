package bodies

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/quantities"
	"github.com/shardplane/shardplane/pkg/request/values"
)

// checkValues returns an error if a body has too many values, too large ones in YAML, or large quantities. It rejects
// malformed content types because handlers and filters interpret them differently, and CBOR, which is an alpha feature
// of Kubernetes.
func checkValues(data []byte, contentType, resource string, largest int64) *apierrors.StatusError {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil && contentType != "" { // JSON by default
		return request.StatusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "the Content-Type header is malformed: "+err.Error())
	}
	if mediaType == runtime.ContentTypeCBOR || mediaType == string(types.ApplyCBORPatchType) { // clients then send JSON
		return request.StatusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "bodies in CBOR are not supported: use JSON")
	}
	isYAML := mediaType == runtime.ContentTypeYAML || mediaType == string(types.ApplyYAMLPatchType)
	if isYAML && json.Valid(data) { // most clients apply JSON
		isYAML, mediaType = false, runtime.ContentTypeJSON
	}
	if err := values.Check(data, mediaType, resource); err != nil {
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	if isYAML {
		if err := checkYAML(data, largest); err != nil {
			return err
		}
	}
	if resource == "resourcequotas" || resource == "limitranges" {
		if err := quantities.Check(data, mediaType); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	return nil
}

// checkYAML returns an error if YAML is larger than largest when its aliases are replaced by what they refer to, as all
// decoders do, or if the paths of its values are too long. Decoders limit the number of replaced values, but not their
// size: 90 KB become 200 MB.
func checkYAML(data []byte, largest int64) *apierrors.StatusError {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if (sizes{}).of(&document, largest+1) > largest {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d with the values of all YAML aliases", largest))
	}
	paths := 0
	addPaths(&paths, &document, 0)
	if paths > values.MaxPaths {
		return apierrors.NewRequestEntityTooLargeError(values.ErrPaths.Error())
	}
	return nil
}

// addPaths adds the paths of values.Measure, until it exceeds the limit, e.g. because of an alias within its node.
func addPaths(n *int, node *yaml.Node, path int) {
	if *n += path; *n > values.MaxPaths {
		return
	}
	if node.Kind == yaml.AliasNode {
		addPaths(n, node.Alias, path+1)
	}
	for i, child := range node.Content {
		length := values.PerIndex
		if node.Kind == yaml.MappingNode {
			length = len(node.Content[i-i%2].Value)
		}
		addPaths(n, child, path+length)
	}
}

// sizes has the sizes of the nodes that aliases refer to.
type sizes map[*yaml.Node]int64

// of returns the approximate size of a node in bytes, or most if it is larger.
func (s sizes) of(node *yaml.Node, most int64) int64 {
	if node.Kind == yaml.AliasNode {
		size, ok := s[node.Alias]
		if !ok {
			s[node.Alias] = 0 // an alias within the node is an error of decoders
			size = s.of(node.Alias, most)
			s[node.Alias] = size
		}
		return size
	}
	size := int64(len(node.Value) + len(`"":`))
	for _, child := range node.Content {
		size = min(size+s.of(child, most), most)
	}
	return size
}
