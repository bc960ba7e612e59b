// Package directory serves the resources of an authority from the files of one
// directory.
//
// # Files
//
// The name's ending says the format. Files of other endings, hidden files and
// subdirectories are passed over.
//
//	.yaml .yml              any number of documents, each one thing or a list of things
//	.json                   one thing, or a list of things
//	.textpb .txtpb .pbtxt   one thing, in protobuf's text format
//	.pb                     one thing, in protobuf's wire format
//
// A thing is a DiscoveryResponse, a discovery Resource (which is how to give a
// resource a version, or a name of its own) or a bare resource. What each is
// told by:
//
//   - YAML and JSON, which are proto3 JSON: a bare resource has "@type"; without
//     it, what has "resources" or "version_info" is a DiscoveryResponse, and what
//     has "resource" a Resource.
//   - Text: by a comment `# proto-message: envoy.config.cluster.v3.Cluster` before
//     everything else, which may name any message. Without it, it is the first of
//     DiscoveryResponse, Resource and Any that the text fits.
//   - Wire: an Any, if field 1 begins with "type.googleapis.com/"; otherwise a
//     Resource, if it has a name (field 3, a string); otherwise a DiscoveryResponse.
//
// A resource without a version of its own has none: the version_info of a
// DiscoveryResponse is not used, as a file can be edited without changing it.
//
// # Names without a resource of their own
//
// A resource with an xdstp name is a member of the glob collection of its directory:
// xdstp://a/type/foo/x of xdstp://a/type/foo/*. Old-style names are in the wildcard.
//
// A redirect is a Resource whose resource is an xds.core.v3.ResourceLocator. It is of
// the type that its xdstp name says, or that of the DiscoveryResponse that it is in,
// and leads to one resource of that type, or an entry of a list collection of such.
// A list collection has no name inside either, and needs a Resource.
//
// # Changes
//
// The directory is read again when something in it changes, and from time to
// time, because network file systems do not say when. What has changed is
// applied as a whole, one update per type and scope. A file that is bad keeps
// what it last gave, and so does a directory that cannot be read; everything
// else goes on. Write files elsewhere and rename them into place, or swap the
// whole directory as Kubernetes does with a ConfigMap: half a YAML file is often
// a good one.
//
// A directory is all that its authority has: a name that is not in it is absent
// at once, unless a file that never could be read may still have it.
package directory
