// Package apiexport manages the identity of an APIExport, which is stored in a secret, and its default APIExportEndpointSlice.
//
//	secret named by spec.identity.secretRef ─► status.identityHash, immutable
//	no secretRef ─► secret kcp-system/<name of the export> with random data
package apiexport

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/secrets"
)

// Name is the name of the controller.
const Name = "apiexport"

// SecretIndex is the index of exports by the secret with their identity.
const SecretIndex = "secret"

// IndexBySecret is the index function of SecretIndex.
func IndexBySecret(export *apisv1alpha2.APIExport) []string {
	ref := apis.SecretOf(export)
	return []string{client.Key{Cluster: logicalcluster.From(export), Namespace: ref.Namespace, Name: ref.Name}.String()}
}

// NamedSecrets selects secrets that an export references.
func NamedSecrets(exports *client.Informer[*apisv1alpha2.APIExport]) func(*metav1.PartialObjectMetadata) bool {
	return func(secret *metav1.PartialObjectMetadata) bool { return len(exportsOf(exports, secret)) > 0 }
}

func exportsOf(exports *client.Informer[*apisv1alpha2.APIExport], secret *metav1.PartialObjectMetadata) []client.Key {
	return exports.Lister().KeysByIndex(SecretIndex, client.KeyOf(secret).String())
}

// NewAPIExportController returns the controller. Its keys are exports. The informers contain the objects of all logical clusters of
// the shard: exports with SecretIndex, the metadata of secrets that NamedSecrets selects, and endpoint slices.
func NewAPIExportController(local *client.Factory, exports *client.Informer[*apisv1alpha2.APIExport], named *client.Informer[*metav1.PartialObjectMetadata], slices *client.Informer[*apisv1alpha1.APIExportEndpointSlice]) *reconcile.Controller[client.Key] {
	r := &exportReconciler{
		export: exports.Lister().Get, slice: slices.Lister().Get,
		secret: func(ctx context.Context, key client.Key) (*corev1.Secret, error) {
			return kinds.Secrets.InNamespace(local.Cluster(key.Cluster.Path()), key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		},
		createSecret: func(ctx context.Context, cluster logicalcluster.Name, secret *corev1.Secret) (*corev1.Secret, error) {
			return secrets.Create(ctx, local.Cluster(cluster.Path()), secret)
		},
		commit: reconcile.Committer(local, kinds.APIExports),
		createSlice: func(ctx context.Context, cluster logicalcluster.Name, slice *apisv1alpha1.APIExportEndpointSlice) error {
			_, err := kinds.APIExportEndpointSlices.In(local.Cluster(cluster.Path())).Create(ctx, slice, metav1.CreateOptions{})
			return err
		},
		deleteSlice: func(ctx context.Context, cluster logicalcluster.Name, slice *apisv1alpha1.APIExportEndpointSlice) error {
			return kinds.APIExportEndpointSlices.In(local.Cluster(cluster.Path())).Delete(ctx, slice.Name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &slice.UID}})
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(exports),
			reconcile.FromInformer(named, func(secret *metav1.PartialObjectMetadata) []client.Key { return exportsOf(exports, secret) }),
			// A default slice has the name of its export.
			reconcile.Keys(slices),
		},
	})
}

type exportReconciler struct {
	export func(key client.Key) (*apisv1alpha2.APIExport, error)
	slice  func(key client.Key) (*apisv1alpha1.APIExportEndpointSlice, error)
	// secret reads the secret from the server, because informers do not contain the data.
	secret       func(ctx context.Context, key client.Key) (*corev1.Secret, error)
	createSecret func(ctx context.Context, cluster logicalcluster.Name, secret *corev1.Secret) (*corev1.Secret, error)
	commit       func(ctx context.Context, old, updated *apisv1alpha2.APIExport) (*apisv1alpha2.APIExport, error)
	createSlice  func(ctx context.Context, cluster logicalcluster.Name, slice *apisv1alpha1.APIExportEndpointSlice) error
	deleteSlice  func(ctx context.Context, cluster logicalcluster.Name, slice *apisv1alpha1.APIExportEndpointSlice) error

	latest reconcile.Latest[*apisv1alpha2.APIExport]
}

func (r *exportReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := r.export(key)
	export, exists := r.latest.Of(key, cached, err == nil)
	if exists && export.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if err := r.reconcileSlice(ctx, key, export, exists); err != nil || !exists {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.reconcileIdentity(ctx, key, export)
}

func (r *exportReconciler) reconcileIdentity(ctx context.Context, key client.Key, export *apisv1alpha2.APIExport) error {
	ref := apis.SecretOf(export)
	secret, err := r.secret(ctx, client.Key{Cluster: key.Cluster, Namespace: ref.Namespace, Name: ref.Name})
	var failed error
	// An identity is generated if the export has never had one and does not reference a secret of a user.
	if apierrors.IsNotFound(err) && export.Status.IdentityHash == "" && ref == apis.DefaultSecret(export.Name) {
		secret, err = r.createSecret(ctx, key.Cluster, apis.NewSecret(ref))
		if err != nil && !apierrors.IsNotFound(err) {
			failed = fmt.Errorf("creating the secret %s/%s: %w", ref.Namespace, ref.Name, err)
		}
	}
	var updated *apisv1alpha2.APIExport
	switch {
	case failed != nil:
		updated = generationFailed(export, failed)
	case apierrors.IsNotFound(err):
		updated = identify(export, ref, nil)
	case err != nil:
		return fmt.Errorf("reading the secret %s/%s: %w", ref.Namespace, ref.Name, err)
	default:
		updated = identify(export, ref, secret)
	}
	_, err = r.latest.Commit(ctx, r.commit, export, updated)
	return cmp.Or(err, failed)
}

// reconcileSlice creates the default slice of an export, or deletes it with the export.
func (r *exportReconciler) reconcileSlice(ctx context.Context, key client.Key, export *apisv1alpha2.APIExport, exists bool) error {
	slice, err := r.slice(key)
	owner, owned := ownerOf(slice)
	switch {
	case err == nil && owned && (!exists || owner != export.UID):
		err = r.deleteSlice(ctx, key.Cluster, slice)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // deleted or replaced
		}
		return err
	case err == nil || !exists || metav1.HasAnnotation(export.ObjectMeta, apisv1alpha2.APIExportEndpointSliceSkipAnnotation):
		return nil
	}
	if err := r.createSlice(ctx, key.Cluster, newSlice(export)); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the default endpoint slice: %w", err)
	}
	return nil
}

// identify sets the identity from the secret, or the reason why there is none. An existing hash does not change.
func identify(export *apisv1alpha2.APIExport, ref corev1.SecretReference, secret *corev1.Secret) *apisv1alpha2.APIExport {
	export = export.DeepCopy()
	where := ref.Namespace + "/" + ref.Name
	problem := ""
	var key []byte
	if secret != nil {
		export.Spec.Identity = &apisv1alpha2.Identity{SecretRef: &ref}
		key = secret.Data[apis.IdentityKey]
	}
	switch {
	case secret == nil && export.Status.IdentityHash == "":
		problem = fmt.Sprintf("The secret %s does not exist: create it with the identity under %q", where, apis.IdentityKey)
	case secret == nil:
		problem = fmt.Sprintf("The secret %s no longer exists: recreate it with the same identity under %q", where, apis.IdentityKey)
	case len(key) == 0:
		problem = fmt.Sprintf("The secret %s has no value under %q: store the identity there", where, apis.IdentityKey)
	case export.Status.IdentityHash == "":
		export.Status.IdentityHash = apis.IdentityHash(key)
	case export.Status.IdentityHash != apis.IdentityHash(key):
		problem = fmt.Sprintf("The secret %s has another identity than status.identityHash, which never changes: reference the secret with the previous identity, or restore it", where)
	}
	if problem == "" {
		conditions.MarkTrue(export, apisv1alpha2.APIExportIdentityValid)
		return export
	}
	conditions.MarkFalse(export, apisv1alpha2.APIExportIdentityValid, apisv1alpha2.IdentityVerificationFailedReason, conditionsv1alpha1.ConditionSeverityError, "%s", problem)
	return export
}

func generationFailed(export *apisv1alpha2.APIExport, err error) *apisv1alpha2.APIExport {
	export = export.DeepCopy()
	conditions.MarkFalse(export, apisv1alpha2.APIExportIdentityValid, apisv1alpha2.IdentityGenerationFailedReason, conditionsv1alpha1.ConditionSeverityError,
		"%v, retrying", err)
	return export
}

func newSlice(export *apisv1alpha2.APIExport) *apisv1alpha1.APIExportEndpointSlice {
	return &apisv1alpha1.APIExportEndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: export.Name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: apisv1alpha2.SchemeGroupVersion.String(), Kind: "APIExport", Name: export.Name, UID: export.UID,
			}},
		},
		Spec: apisv1alpha1.APIExportEndpointSliceSpec{
			APIExport: apisv1alpha1.ExportBindingReference{Path: logicalcluster.From(export).Path().String(), Name: export.Name},
		},
	}
}

// ownerOf returns the UID of the export that owns a default slice.
func ownerOf(slice *apisv1alpha1.APIExportEndpointSlice) (types.UID, bool) {
	if slice == nil {
		return "", false
	}
	for _, owner := range slice.OwnerReferences {
		if owner.Kind == "APIExport" && strings.HasPrefix(owner.APIVersion, apisv1alpha1.SchemeGroupVersion.Group+"/") && owner.Name == slice.Name {
			return owner.UID, true
		}
	}
	return "", false
}
