/* The admin, before all other scripts: what a string may become, where the browser asks (Trusted Types).
   On our own pages theme.js says the same, which spares the labelling screen a request.

   Our policy lets strings become HTML: htmx and the labelling screen put fragments of our own server in place,
   and inline scripts in them are refused by the content security policy. It lets a string become the address of
   a script only on our own server, and never lets one become a script. */
(() => {
  "use strict";
  globalThis.trustedTypes?.createPolicy("default", {
    createHTML: (html) => html,
    createScriptURL: (address) => new URL(address, document.baseURI).origin === location.origin ? address : null,
  });
})();
