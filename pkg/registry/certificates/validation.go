package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/validate"
)

const (
	minExpirationSeconds = 600
	// maxSignerNameLength is the maximum length of a domain and a path.
	maxSignerNameLength = 571
)

var (
	spec        = field.NewPath("spec")
	certificate = field.NewPath("status", "certificate")
	conditions  = field.NewPath("status", "conditions")

	usages = []certificatesv1.KeyUsage{
		certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
		certificatesv1.UsageKeyEncipherment, certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment,
		certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign, certificatesv1.UsageEncipherOnly,
		certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny, certificatesv1.UsageServerAuth,
		certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection,
		certificatesv1.UsageSMIME, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
		certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping, certificatesv1.UsageOCSPSigning,
		certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC,
	}
)

type csr = certificatesv1.CertificateSigningRequest

// decision reports whether approvers, not signers, write a condition.
func decision(kind certificatesv1.RequestConditionType) bool {
	return kind == certificatesv1.CertificateApproved || kind == certificatesv1.CertificateDenied
}

func validateNew(request *csr) field.ErrorList {
	errs := validate.ObjectMeta(request, false, apivalidation.NameIsDNSSubdomain)
	if err := checkRequest(request.Spec.Request); err != nil {
		errs = append(errs, field.Invalid(spec.Child("request"), request.Spec.Request, err.Error()))
	}
	if len(request.Spec.Usages) == 0 {
		errs = append(errs, field.Required(spec.Child("usages"), ""))
	}
	seen := map[certificatesv1.KeyUsage]bool{}
	for i, usage := range request.Spec.Usages {
		path := spec.Child("usages").Index(i)
		if !slices.Contains(usages, usage) {
			errs = append(errs, field.NotSupported(path, usage, usages))
		}
		if seen[usage] {
			errs = append(errs, field.Duplicate(path, usage))
		}
		seen[usage] = true
	}
	errs = append(errs, signerName(request.Spec.SignerName)...)
	if seconds := request.Spec.ExpirationSeconds; seconds != nil && *seconds < minExpirationSeconds {
		errs = append(errs, field.Invalid(spec.Child("expirationSeconds"), *seconds, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return errs
}

// checkRequest checks that a request is signed with its own key.
func checkRequest(content []byte) error {
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return request.CheckSignature()
}

func signerName(name string) field.ErrorList {
	path := spec.Child("signerName")
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	domain, rest, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(rest, "/") {
		return field.ErrorList{field.Invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Subdomain(domain) {
		errs = append(errs, field.Invalid(path, domain, "validating label: "+msg))
	}
	if domain == "kubernetes.io" && rest == "legacy-unknown" {
		errs = append(errs, field.Invalid(path, name, "the legacy signerName is not allowed via this API version"))
	}
	if !strings.Contains(domain, ".") {
		errs = append(errs, field.Invalid(path, domain, "should be a domain with at least two segments separated by dots"))
	}
	for segment := range strings.SplitSeq(rest, ".") {
		errs = append(errs, validate.Messages(path, rest, validation.IsDNS1123Label(segment))...)
	}
	if len(name) > maxSignerNameLength {
		errs = append(errs, field.TooLong(path, "", maxSignerNameLength))
	}
	return errs
}

func validateStatus(_ context.Context, request, old *csr) field.ErrorList {
	errs := validateConditions(request, old, false)
	if len(old.Status.Certificate) > 0 && string(old.Status.Certificate) != string(request.Status.Certificate) {
		return append(errs, field.Forbidden(certificate, "updates may not change the certificate of a request that has one"))
	}
	if len(request.Status.Certificate) > 0 && len(old.Status.Certificate) == 0 {
		if err := checkCertificate(request.Status.Certificate); err != nil {
			errs = append(errs, field.Invalid(certificate, "<certificate data>", err.Error()))
		}
	}
	return errs
}

// checkCertificate checks that content has only PEM blocks with certificates.
func checkCertificate(content []byte) error {
	found := false
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) > 0 {
			return errors.New("no PEM block headers are permitted")
		}
		if _, err := x509.ParseCertificates(block.Bytes); err != nil {
			return err
		}
		found = true
	}
	if !found {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}

func validateApproval(_ context.Context, request, old *csr) field.ErrorList {
	return validateConditions(request, old, true)
}

// validateConditions validates the conditions of a status. Decisions must not be reverted.
func validateConditions(request, old *csr, approval bool) field.ErrorList {
	errs := validate.ObjectMetaUpdate(request, old)
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, condition := range request.Status.Conditions {
		errs = append(errs, validateCondition(condition, conditions.Index(i))...)
		if seen[condition.Type] {
			errs = append(errs, field.Duplicate(conditions.Index(i).Child("type"), condition.Type))
		}
		seen[condition.Type] = true
	}
	if seen[certificatesv1.CertificateApproved] && seen[certificatesv1.CertificateDenied] {
		errs = append(errs, field.Invalid(conditions, "Denied", "Approved and Denied conditions are mutually exclusive"))
	}
	lasting := []certificatesv1.RequestConditionType{certificatesv1.CertificateFailed}
	if approval {
		lasting = append(lasting, certificatesv1.CertificateApproved, certificatesv1.CertificateDenied)
	}
	for _, kind := range lasting {
		if !reflect.DeepEqual(ofType(old, kind), ofType(request, kind)) && len(ofType(old, kind)) > 0 {
			errs = append(errs, field.Forbidden(conditions, fmt.Sprintf("updates may not remove or change a condition of type %q", kind)))
		}
	}
	return errs
}

func validateCondition(condition certificatesv1.CertificateSigningRequestCondition, path *field.Path) field.ErrorList {
	switch {
	case condition.Type == "":
		return field.ErrorList{field.Required(path.Child("type"), "")}
	case condition.Status == "":
		return field.ErrorList{field.Required(path.Child("status"), "")}
	}
	all := []corev1.ConditionStatus{corev1.ConditionTrue}
	if !decision(condition.Type) && condition.Type != certificatesv1.CertificateFailed {
		all = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	}
	if !slices.Contains(all, condition.Status) {
		return field.ErrorList{field.NotSupported(path.Child("status"), condition.Status, all)}
	}
	return nil
}

// ofType returns the statuses of conditions of a type. Their times and messages may change.
func ofType(request *csr, kind certificatesv1.RequestConditionType) []corev1.ConditionStatus {
	var found []corev1.ConditionStatus
	for _, condition := range request.Status.Conditions {
		if condition.Type == kind {
			found = append(found, condition.Status)
		}
	}
	return found
}
