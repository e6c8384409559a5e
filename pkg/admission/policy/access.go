package policy

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Access is the admission plugin that requires authors of policies and bindings to be allowed to read the
// parameters. The server reads them as system:masters, and responses of a policy may disclose them.
//
// The rules are those of kube-apiserver. paramKind requires get on all objects of the kind. paramRef requires
// get on the named object, or list for a selector, and applies to all kinds if the policy or its kind of
// parameters does not exist yet. Updates that do not change these fields require nothing.
type Access struct {
	*admission.Handler
	clients    *client.Factory
	authorizer authorizer.UnconditionalAuthorizer
}

var _ admission.ValidationInterface = &Access{}

// NewAccess returns the plugin. It uses Clients and Authorizer of c.
func NewAccess(c Config) *Access {
	return &Access{Handler: admission.NewHandler(admission.Create, admission.Update), clients: c.Clients, authorizer: c.Authorizer}
}

// paramsOf returns the parameter kind of a policy, or the parameter reference and policy name of a binding.
func paramsOf(obj runtime.Object) (kind *admissionregistrationv1.ParamKind, ref *admissionregistrationv1.ParamRef, policy string) {
	switch obj := obj.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		return obj.Spec.ParamKind, nil, ""
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		return obj.Spec.ParamKind, nil, ""
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		return nil, obj.Spec.ParamRef, obj.Spec.PolicyName
	case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
		return nil, obj.Spec.ParamRef, obj.Spec.PolicyName
	default:
		return nil, nil, ""
	}
}

// Validate implements admission.ValidationInterface.
func (p *Access) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	kind, ref, policy := paramsOf(a.GetObject())
	if kind == nil && ref == nil || identity.MemberOf(ctx, a.GetUserInfo(), user.SystemPrivilegedGroup) {
		return nil
	}
	if oldKind, oldRef, oldPolicy := paramsOf(a.GetOldObject()); a.GetOperation() == admission.Update &&
		equality.Semantic.DeepEqual(kind, oldKind) && equality.Semantic.DeepEqual(ref, oldRef) && policy == oldPolicy {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	wanted := authorizer.AttributesRecord{User: a.GetUserInfo(), Verb: "get", Namespace: "*", Name: "*", ResourceRequest: true}
	if ref != nil {
		if kind, err = p.kindOf(ctx, cluster, a.GetResource().Resource, policy); err != nil {
			return err
		}
		if wanted.Name = ref.Name; ref.Name == "" {
			wanted.Verb = "list"
		}
		if ref.Namespace != "" {
			wanted.Namespace = ref.Namespace
		}
	}
	wanted.APIGroup, wanted.APIVersion, wanted.Resource = p.resourceOf(ctx, cluster, kind)
	decision, _, err := p.authorizer.Authorize(ctx, wanted)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorizing access to the parameters: %w", err))
	}
	if decision != authorizer.DecisionAllow {
		return admission.NewForbidden(a, fmt.Errorf("you must be allowed to %s %s, because policies disclose their parameters", wanted.Verb, describe(wanted)))
	}
	return nil
}

// kindOf returns the parameter kind of the policy that a binding names, or nil.
func (p *Access) kindOf(ctx context.Context, cluster logicalcluster.Name, bindings, policy string) (*admissionregistrationv1.ParamKind, error) {
	in := p.clients.Cluster(cluster.Path())
	var found runtime.Object
	var err error
	if bindings == "mutatingadmissionpolicybindings" {
		found, err = kinds.MutatingAdmissionPolicies.In(in).Get(ctx, policy, metav1.GetOptions{})
	} else {
		found, err = kinds.ValidatingAdmissionPolicies.In(in).Get(ctx, policy, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none yet
	}
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("reading the policy %s: %w", policy, err))
	}
	kind, _, _ := paramsOf(found)
	return kind, nil
}

// resourceOf returns the resource of a parameter kind, with * for unknown parts.
func (p *Access) resourceOf(ctx context.Context, cluster logicalcluster.Name, kind *admissionregistrationv1.ParamKind) (group, version, resource string) {
	if kind == nil {
		return "*", "*", "*"
	}
	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	mapping, err := resourceOf(ctx, p.clients.Cluster(cluster.Path()), gvk)
	if err != nil {
		return gvk.Group, gvk.Version, "*"
	}
	return gvk.Group, gvk.Version, mapping.Resource.Resource
}

func describe(a authorizer.AttributesRecord) string {
	resource := schema.GroupResource{Group: a.APIGroup, Resource: a.Resource}.String()
	if a.Resource == "*" {
		resource = "all resources (the kind of the parameters is unknown)"
	}
	objects, in := "all of "+resource, " in all namespaces"
	if a.Resource == "*" {
		objects = resource
	}
	if a.Name != "*" && a.Name != "" {
		objects = fmt.Sprintf("%q of %s", a.Name, resource)
	}
	if a.Namespace != "*" {
		in = fmt.Sprintf(" in namespace %q", a.Namespace)
	}
	return objects + in
}
