package taster

import (
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file checks RBAC filters as gRPC's servers do.

// rbacIn returns the RBAC configuration in an Any, nil if it is of another filter.
func rbacIn(t *tasting, config *anypb.Any) *rbacv3.RBAC {
	switch m := t.openRBAC(config).(type) {
	case *rbacv3.RBAC:
		return m
	case *rbacv3.RBACPerRoute:
		return m.GetRbac()
	}
	return nil
}

func (t *tasting) openRBAC(config *anypb.Any) any {
	if !strings.HasPrefix(config.GetTypeUrl(), httpFilterPrefix+"rbac.") {
		return nil
	}
	return t.open(config).message
}

// rbacIsAllowed reports whether the policies contain nothing that gRPC refuses.
func rbacIsAllowed(c *rbacv3.RBAC) bool {
	for _, p := range c.GetRules().GetPolicies() {
		if p.GetCondition() != nil || p.GetCheckedCondition() != nil {
			return false
		}
		if !allValid(p.GetPermissions(), permissionIsAllowed) || !allValid(p.GetPrincipals(), principalIsAllowed) {
			return false
		}
	}
	return true
}

func permissionIsAllowed(p *rbacconfigv3.Permission) bool {
	switch rule := p.GetRule().(type) {
	case *rbacconfigv3.Permission_Header:
		return headerIsAllowed(rule.Header)
	case *rbacconfigv3.Permission_AndRules:
		return allValid(rule.AndRules.GetRules(), permissionIsAllowed)
	case *rbacconfigv3.Permission_OrRules:
		return allValid(rule.OrRules.GetRules(), permissionIsAllowed)
	case *rbacconfigv3.Permission_NotRule:
		return permissionIsAllowed(rule.NotRule)
	}
	return true
}

func principalIsAllowed(p *rbacconfigv3.Principal) bool {
	switch id := p.GetIdentifier().(type) {
	case *rbacconfigv3.Principal_Header:
		return headerIsAllowed(id.Header)
	case *rbacconfigv3.Principal_AndIds:
		return allValid(id.AndIds.GetIds(), principalIsAllowed)
	case *rbacconfigv3.Principal_OrIds:
		return allValid(id.OrIds.GetIds(), principalIsAllowed)
	case *rbacconfigv3.Principal_NotId:
		return principalIsAllowed(id.NotId)
	}
	return true
}

func allValid[M any](list []M, isValid func(M) bool) bool {
	for _, m := range list {
		if !isValid(m) {
			return false
		}
	}
	return true
}

func headerIsAllowed(h *routev3.HeaderMatcher) bool {
	name := strings.ToLower(h.GetName())
	return name != ":scheme" && !strings.HasPrefix(name, "grpc-")
}

// rbacIsKnown reports whether gRPC supports the policies. gRPC ignores those that only log.
func (t *tasting) rbacIsKnown(c *rbacv3.RBAC) bool {
	rules := c.GetRules()
	switch {
	case rules == nil || rules.GetAction() == rbacconfigv3.RBAC_LOG:
		return true
	case rules.GetAction() != rbacconfigv3.RBAC_ALLOW && rules.GetAction() != rbacconfigv3.RBAC_DENY:
		return false
	}
	for _, p := range rules.GetPolicies() {
		if !allValid(p.GetPermissions(), t.permissionIsKnown) || !allValid(p.GetPrincipals(), t.principalIsKnown) {
			return false
		}
	}
	return allValid(rules.GetAuditLoggingOptions().GetLoggerConfigs(), t.loggerIsKnown)
}

func (t *tasting) permissionIsKnown(p *rbacconfigv3.Permission) bool {
	switch rule := p.GetRule().(type) {
	case *rbacconfigv3.Permission_AndRules:
		return allValid(rule.AndRules.GetRules(), t.permissionIsKnown)
	case *rbacconfigv3.Permission_OrRules:
		return allValid(rule.OrRules.GetRules(), t.permissionIsKnown)
	case *rbacconfigv3.Permission_NotRule:
		return t.permissionIsKnown(rule.NotRule)
	case *rbacconfigv3.Permission_Header:
		return t.headerIsKnown(rule.Header)
	case *rbacconfigv3.Permission_UrlPath:
		return t.matcherIsValid(rule.UrlPath.GetPath())
	case *rbacconfigv3.Permission_DestinationIp:
		return rangeIsValid(rule.DestinationIp)
	case *rbacconfigv3.Permission_RequestedServerName:
		return t.matcherIsValid(rule.RequestedServerName)
	case *rbacconfigv3.Permission_Any, *rbacconfigv3.Permission_DestinationPort, *rbacconfigv3.Permission_Metadata:
		return true
	}
	return false
}

func (t *tasting) principalIsKnown(p *rbacconfigv3.Principal) bool {
	switch id := p.GetIdentifier().(type) {
	case *rbacconfigv3.Principal_AndIds:
		return allValid(id.AndIds.GetIds(), t.principalIsKnown)
	case *rbacconfigv3.Principal_OrIds:
		return allValid(id.OrIds.GetIds(), t.principalIsKnown)
	case *rbacconfigv3.Principal_NotId:
		return t.principalIsKnown(id.NotId)
	case *rbacconfigv3.Principal_Authenticated_:
		name := id.Authenticated.GetPrincipalName()
		return name == nil || t.matcherIsValid(name)
	case *rbacconfigv3.Principal_Header:
		return t.headerIsKnown(id.Header)
	case *rbacconfigv3.Principal_UrlPath:
		return t.matcherIsValid(id.UrlPath.GetPath())
	case *rbacconfigv3.Principal_SourceIp:
		return rangeIsValid(id.SourceIp)
	case *rbacconfigv3.Principal_DirectRemoteIp:
		return rangeIsValid(id.DirectRemoteIp)
	case *rbacconfigv3.Principal_RemoteIp:
		return rangeIsValid(id.RemoteIp)
	case *rbacconfigv3.Principal_Any, *rbacconfigv3.Principal_Metadata:
		return true
	}
	return false
}

func (t *tasting) headerIsKnown(h *routev3.HeaderMatcher) bool {
	switch m := h.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_SafeRegexMatch:
		return t.regexpIsValid(m.SafeRegexMatch.GetRegex())
	case *routev3.HeaderMatcher_StringMatch:
		return t.matcherIsValid(m.StringMatch)
	}
	return h.GetHeaderMatchSpecifier() != nil
}

// rangeIsValid reports whether a range is a valid address range.
func rangeIsValid(r *corev3.CidrRange) bool {
	addr, err := netip.ParseAddr(r.GetAddressPrefix())
	return err == nil && addr.Zone() == "" && int(r.GetPrefixLen().GetValue()) <= addr.BitLen()
}

const stdoutLog = xdstype.Prefix + "envoy.extensions.rbac.audit_loggers.stream.v3.StdoutAuditLog"

// loggerIsKnown reports whether gRPC has an audit logger, or a client may have added it.
func (t *tasting) loggerIsKnown(l *rbacconfigv3.RBAC_AuditLoggingOptions_AuditLoggerConfig) bool {
	config := l.GetAuditLogger().GetTypedConfig()
	return (config.GetTypeUrl() == stdoutLog || typedStructs[config.GetTypeUrl()]) && !t.open(config).failed
}
