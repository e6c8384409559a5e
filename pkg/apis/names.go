package apis

import (
	"cmp"
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
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/schemacosts"
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

var schemaPrefix = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

// ExportLabelValue returns the value of ExportLabel on the bindings of an export.
func ExportLabelValue(provider logicalcluster.Name, export string) string {
	return hash([]byte(provider.Path().Join(export).String()))
}

// Complete sets the metadata that servers add to new bindings: the finalizer, the path of the logical cluster, and
// the label of the export (ExportLabelValue). It omits path and label if they are empty.
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

// IndexByPath indexes an export by its logical cluster and annotated path, each joined with its name, and as
// PathIndexKey.
func IndexByPath(export *apisv1alpha2.APIExport) []string {
	cluster := logicalcluster.From(export).Path()
	keys := []string{cluster.Join(export.Name).String(), PathIndexKey(cluster)}
	if annotated := logicalcluster.NewPath(export.Annotations[core.LogicalClusterPathAnnotationKey]); !annotated.Empty() && annotated != cluster {
		keys = append(keys, annotated.Join(export.Name).String(), PathIndexKey(annotated))
	}
	return keys
}

// PathIndexKey returns the key in PathIndex of all exports in the logical cluster at a path.
func PathIndexKey(path logicalcluster.Path) string { return path.String() + ":" }

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
	return corev1.SecretReference{Namespace: cmp.Or(named.Namespace, ref.Namespace), Name: cmp.Or(named.Name, ref.Name)}
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
		return SchemaName{}, fmt.Errorf("must be <prefix>.<plural>.<group>, with %q for the core group and a prefix of lower case letters, digits and '-' that begins with a letter, such as v1.widgets.example.org", coreGroup)
	}
	return SchemaName{Prefix: prefix, Resource: schema.GroupResource{Group: DefinitionGroup(rest), Resource: resource}}, nil
}

// String returns the name.
func (n SchemaName) String() string { return n.Prefix + "." + DefinitionName(n.Resource) }

var spec = field.NewPath("spec")

// coreGroup is the name of the group "" where a name must not be empty.
const coreGroup = "core"

// undottedGroups contains all Kubernetes groups without a dot. Definitions and schemas may use them.
var undottedGroups = []string{"", "apps", "batch", "extensions", "policy", "autoscaling"}

// dotted is appended to such a group, because upstream's validation requires a dot.
const dotted = ".group.invalid"

// DefinitionName returns the name of the CustomResourceDefinition of a resource.
func DefinitionName(resource schema.GroupResource) string {
	return resource.Resource + "." + cmp.Or(resource.Group, coreGroup)
}

// DefinitionGroup returns the group in the name of a CustomResourceDefinition.
func DefinitionGroup(name string) string {
	_, group, _ := strings.Cut(name, ".")
	if group == coreGroup {
		return ""
	}
	return group
}

// ValidateDefinition calls upstream's validation with a definition, and with the previous one unless it is nil.
// Kubernetes groups without a dot are replaced by others with a dot. If the limits of schemacosts are exceeded,
// upstream's validation is not called, because it compiles patterns and applies defaults.
func ValidateDefinition(crd, old *apiextensions.CustomResourceDefinition, validate func(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList) field.ErrorList {
	if errs := aboveLimits(crd, old); len(errs) > 0 {
		return request.LimitErrors(errs)
	}
	if !slices.Contains(undottedGroups, crd.Spec.Group) || old != nil && old.Spec.Group != crd.Spec.Group {
		return request.LimitErrors(validate(crd, old))
	}
	errs := request.LimitErrors(validate(withDot(crd), withDot(old)))
	for _, err := range errs {
		if value, ok := err.BadValue.(string); ok {
			err.BadValue = strings.TrimSuffix(value, dotted)
		}
	}
	return errs
}

// aboveLimits returns an error if a definition exceeds the limits and its predecessor did not.
func aboveLimits(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	var specs [2]*apiextensionsv1.CustomResourceDefinitionSpec
	for i, d := range []*apiextensions.CustomResourceDefinition{crd, old} {
		if d == nil {
			continue
		}
		var converted apiextensionsv1.CustomResourceDefinition
		if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(d, &converted, nil); err != nil {
			return field.ErrorList{field.InternalError(spec, err)}
		}
		specs[i] = &converted.Spec
	}
	return schemacosts.CheckSpec(specs[0], specs[1])
}

func withDot(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	if crd == nil {
		return nil
	}
	shown := *crd
	shown.Name += dotted
	shown.Spec.Group = cmp.Or(crd.Spec.Group, coreGroup) + dotted
	return &shown
}
