package apis

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// ExportLabel identifies the export of a binding. Its value is the same for all bindings to one export, see
	// ExportLabelValue.
	//
	//reference:metadata APIBinding | admission
	ExportLabel = "internal.apis.kcp.io/export"
	// ExportIndex is the name of the index of bindings by ExportLabel.
	ExportIndex = "export"
	// PathIndex is the name of the index of exports by logical cluster, path and name.
	PathIndex = "path"
	// IdentityIndex is the name of the index of exports by identity.
	IdentityIndex = "identity"
	// MirroredPrefix is the prefix of annotations that each APIBinding copies from its export.
	//
	//reference:metadata annotation APIExport, APIBinding | providers; APIBinding controller
	MirroredPrefix = "extra.apis.kcp.io/"
	// BindingFinalizer protects APIBindings until the objects of their bound resources have been deleted.
	//
	//reference:metadata APIBinding | admission
	BindingFinalizer = "apis.kcp.io/apibinding-finalizer"
	// InternalGroup is the API group of objects that shards store for themselves.
	InternalGroup = "internal.shardplane.io"
	// IdentityNamespace contains the secrets with the identities of exports that do not specify one.
	IdentityNamespace = "kcp-system"
	// IdentityKey is the key of the identity in a secret.
	IdentityKey = apisv1alpha1.SecretKeyAPIExportIdentity

	identityBytes = 32
)

// schemaPrefix matches the prefix of the name of an APIResourceSchema.
var schemaPrefix = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

// ExportLabelValue returns the value of ExportLabel on the bindings of an export.
func ExportLabelValue(provider logicalcluster.Name, export string) string {
	return hash([]byte(provider.Path().Join(export).String()))
}

// Complete sets the metadata that servers add to new bindings: the finalizer, and unless they are empty, the path of
// the logical cluster and the label of the export (ExportLabelValue).
func Complete(binding metav1.Object, path, label string) {
	set := func(of map[string]string, key, value string) map[string]string {
		all := make(map[string]string, len(of)+1)
		maps.Copy(all, of)
		all[key] = value
		return all
	}
	if path != "" {
		binding.SetAnnotations(set(binding.GetAnnotations(), core.LogicalClusterPathAnnotationKey, path))
	}
	if label != "" {
		binding.SetLabels(set(binding.GetLabels(), ExportLabel, label))
	}
	if finalizers := binding.GetFinalizers(); !slices.Contains(finalizers, BindingFinalizer) {
		binding.SetFinalizers(append(finalizers, BindingFinalizer))
	}
}

// DefaultBindingName returns the name of the binding to an export that a workspace type specifies with a path.
func DefaultBindingName(cluster logicalcluster.Name, path, export string) string {
	const hashed = 5 // characters of the hash
	suffix := "-" + strings.ToLower(hash([]byte(cluster.String() + "|" + path + "|" + export))[:hashed])
	return export[:min(len(export), validation.DNS1123SubdomainMaxLength-len(suffix))] + suffix
}

// IndexByExport indexes a binding by the label of its export.
func IndexByExport(binding *apisv1alpha2.APIBinding) []string {
	if value := binding.Labels[ExportLabel]; value != "" {
		return []string{value}
	}
	return nil
}

// IndexByPath indexes an export by its logical cluster and, if an annotation contains it, by the path: each joined with
// the name of the export, and as AnyAt.
func IndexByPath(export *apisv1alpha2.APIExport) []string {
	cluster := logicalcluster.From(export).Path()
	keys := []string{cluster.Join(export.Name).String(), AnyAt(cluster)}
	if annotated := logicalcluster.NewPath(export.Annotations[core.LogicalClusterPathAnnotationKey]); !annotated.Empty() && annotated != cluster {
		keys = append(keys, annotated.Join(export.Name).String(), AnyAt(annotated))
	}
	return keys
}

// AnyAt returns the key in PathIndex of all exports in the logical cluster at a path.
func AnyAt(path logicalcluster.Path) string { return path.String() + ":" }

// IndexByIdentity indexes an export by its identity.
func IndexByIdentity(export *apisv1alpha2.APIExport) []string {
	if export.Status.IdentityHash == "" {
		return nil
	}
	return []string{export.Status.IdentityHash}
}

// ClaimLabel returns the label of objects to which an accepted permission claim applies. It does not depend on verbs
// and the default selector, which may change.
func ClaimLabel(provider logicalcluster.Name, export string, claim apisv1alpha2.PermissionClaim) (key, value string, err error) {
	claim.Verbs, claim.DefaultSelector = nil, nil
	encoded, err := json.Marshal(claim)
	if err != nil {
		return "", "", fmt.Errorf("encoding the permission claim %s: %w", claim, err)
	}
	return apisv1alpha2.APIExportPermissionClaimLabelPrefix + ExportLabelValue(provider, export), hash(encoded), nil
}

// hash returns SHA-224 in base62, like kcp's labels.
func hash(data []byte) string {
	sum := sha256.Sum224(data)
	return new(big.Int).SetBytes(sum[:]).Text(62) //nolint:mnd // the number of digits and letters
}

// NewIdentity returns a random identity.
func NewIdentity() string {
	var bits [identityBytes]byte
	_, _ = rand.Read(bits[:]) // it never fails
	return hex.EncodeToString(bits[:])
}

// IdentityHash returns the public hash of an identity.
func IdentityHash(identity []byte) string {
	sum := sha256.Sum256(identity)
	return hex.EncodeToString(sum[:])
}

// NewSecret returns a secret with a new identity.
func NewSecret(ref corev1.SecretReference) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name},
		StringData: map[string]string{IdentityKey: NewIdentity()},
	}
}

// DefaultSecret returns the secret with the identity of an export that does not specify one.
func DefaultSecret(export string) corev1.SecretReference {
	return corev1.SecretReference{Namespace: IdentityNamespace, Name: export}
}

// SecretOf returns the secret with the identity of an export.
func SecretOf(export *apisv1alpha2.APIExport) corev1.SecretReference {
	var named *corev1.SecretReference
	if export.Spec.Identity != nil {
		named = export.Spec.Identity.SecretRef
	}
	return secretOf(export.Name, named)
}

// secretOf returns the secret with the identity of an object, according to an optional and possibly incomplete reference.
func secretOf(object string, named *corev1.SecretReference) corev1.SecretReference {
	ref := DefaultSecret(object)
	if named == nil {
		return ref
	}
	if named.Namespace != "" {
		ref.Namespace = named.Namespace
	}
	if named.Name != "" {
		ref.Name = named.Name
	}
	return ref
}

// SchemaName is the parsed name of an APIResourceSchema.
type SchemaName struct {
	// Prefix distinguishes schemas of the same resource, e.g. by their age.
	Prefix string
	// Resource is the resource that the schema defines.
	Resource schema.GroupResource
}

// ParseSchemaName parses the name of an APIResourceSchema. The error describes the required format.
func ParseSchemaName(name string) (SchemaName, error) {
	prefix, rest, _ := strings.Cut(name, ".")
	resource, group, found := strings.Cut(rest, ".")
	if !found || resource == "" || group == "" || !schemaPrefix.MatchString(prefix) {
		return SchemaName{}, fmt.Errorf("must be <prefix>.<plural>.<group>, with %q for the group \"\" and a prefix of lower case letters, digits and '-' that begins with a letter, such as v1.widgets.example.org", coreGroup)
	}
	if group == coreGroup {
		group = ""
	}
	return SchemaName{Prefix: prefix, Resource: schema.GroupResource{Group: group, Resource: resource}}, nil
}

// String returns the name.
func (n SchemaName) String() string {
	return n.Prefix + schemaSuffix(n.Resource)
}

func schemaSuffix(resource schema.GroupResource) string {
	return "." + DefinitionName(resource)
}
